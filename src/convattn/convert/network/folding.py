"""Merges linear maps and batch normalisation into the convolution before them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from einops import rearrange
from torch import Tensor, nn

from convattn.convert.classes import AnyConvolution, TransposedConvolution
from convattn.convert.network.modules import names_by_module
from convattn.layers.block import MixingBlock

_NORMS: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_NORM_TENSORS = ("running_mean", "running_var", "weight", "bias")


def fold_following(
    model: nn.Module, convolutions: Sequence[AnyConvolution], calls: Mapping[str, int] | None = None
) -> dict[nn.Module, str]:
    """Folds linear maps and batch normalisation into the convolutions before them, in place.

    The linear map of a `MixingBlock` is folded into its mixer; in an `nn.Sequential`, batch normalisation in evaluation
    mode is folded into the module right before it. Modules that are used in several places or have hooks are left
    alone, folded ones become `nn.Identity`. `W' = L W, b' = L b + c`, computed in float64 and rounded once.

    A network may run a part of an `nn.Sequential`, or look between its modules. `calls` says how often each module of a
    `nn.Sequential`, and itself, runs in one pass: all must run equally often. Without `calls`, only an `nn.Sequential`
    that is the network, or lies in such ones alone, certainly runs as a whole. Returns the class of the module folded
    into each convolution.
    """
    named = names_by_module(model)
    free = {module for module, names in named.items() if len(names) == 1 and not _has_forward_hooks(module)}
    wanted, folded = set(convolutions), {}
    for parent, names in named.items():
        if _has_forward_hooks(parent) or len(names) > 1:
            continue
        for conv, follower, name in _consecutive_modules(parent):
            if conv not in wanted or conv not in free or follower not in free:
                continue
            if type(parent) is nn.Sequential and not _run_together(
                model, names[0], named[conv] + named[follower], calls
            ):
                continue
            assert isinstance(conv, AnyConvolution)
            linear = _linear_map(conv, follower)
            if linear is None:
                continue
            _fold(conv, *linear)
            setattr(parent, name, nn.Identity().train(follower.training))
            folded[conv] = type(follower).__name__
    return folded


def _consecutive_modules(parent: nn.Module) -> Iterator[tuple[nn.Module, nn.Module, str]]:
    """Yields pairs of modules of which one follows the other, and the name of the second one in its parent."""
    if type(parent) is MixingBlock:
        yield parent.mixer, parent.dense, "dense"
    elif type(parent) is nn.Sequential:
        for (_, first), (name, second) in pairwise(parent._modules.items()):
            if first is not None and second is not None:
                yield first, second, name


def _run_together(model: nn.Module, parent: str, children: Sequence[str], calls: Mapping[str, int] | None) -> bool:
    """Tells whether an `nn.Sequential` runs as a whole, and these modules in it only so."""
    if calls is not None:
        return calls.get(parent, 0) > 0 and all(calls.get(name) == calls[parent] for name in children)
    parts = parent.split(".") if parent else []
    return all(type(model.get_submodule(".".join(parts[:n]))) is nn.Sequential for n in range(len(parts)))


def _linear_map(conv: AnyConvolution, follower: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Returns the follower's matrix (outputs, channels), or a factor per channel, and its bias; None if it has none."""
    if type(follower) is nn.Linear and follower.in_features == conv.out_channels and conv.groups == 1:
        weight = follower.weight.detach().double()
        bias = weight.new_zeros(len(weight)) if follower.bias is None else follower.bias.detach().double()
        return weight, bias
    if type(follower) is not _NORMS[len(conv.kernel_size)] or follower.training:
        return None
    mean, variance, scale, shift = (getattr(follower, name) for name in _NORM_TENSORS)
    if mean is None or variance is None or len(mean) != conv.out_channels:
        return None
    factor = (variance.double() + follower.eps).rsqrt()
    if scale is not None:
        factor = factor * scale.detach().double()
    bias = -mean.double() * factor
    return factor, bias if shift is None else bias + shift.detach().double()


def _fold(conv: AnyConvolution, linear: Tensor, bias: Tensor) -> None:
    """Merges a linear map into the convolution before it."""
    transposed = isinstance(conv, TransposedConvolution)
    weight = conv.weight.detach().double()
    old = bias.new_zeros(conv.out_channels) if conv.bias is None else conv.bias.detach().double()
    if transposed:
        weight = rearrange(weight, "(groups i) o ... -> (groups o) i ...", groups=conv.groups)
    flat = weight.flatten(1)
    flat = linear @ flat if linear.ndim == 2 else linear[:, None] * flat
    weight = flat.view(-1, *weight.shape[1:])
    if transposed:
        weight = rearrange(weight, "(groups o) i ... -> (groups i) o ...", groups=conv.groups)
    moved = bias + (linear @ old if linear.ndim == 2 else linear * old)
    conv.out_channels = len(moved)
    conv.weight = nn.Parameter(weight.to(conv.weight.dtype).contiguous(), requires_grad=conv.weight.requires_grad)
    conv.bias = nn.Parameter(moved.to(conv.weight.dtype), requires_grad=conv.weight.requires_grad)


def _has_forward_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
