"""Merges linear maps and batch normalisation into the convolution before them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from einops import rearrange
from torch import Tensor, nn

from convattn.convert.classes import AnyConvolution, TransposedConvolution
from convattn.convert.network.modules import CALLS, names_by_module
from convattn.layers.block import MixingBlock

_NORMS: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_NORM_TENSORS = ("running_mean", "running_var", "weight", "bias")


def fold_following(
    model: nn.Module, convolutions: Sequence[AnyConvolution], calls: Mapping[str, int] | None = None
) -> dict[nn.Module, str]:
    """Folds linear maps and batch normalisation into the convolutions before them, in place.

    The linear map of a `MixingBlock` is folded into its mixer; in an `nn.Sequential`, batch normalisation in evaluation
    mode is folded into the module right before it. A linear map in an `nn.Sequential` acts on the last axis and not on
    channels, and stays. Folded modules become `nn.Identity`. `W' = L W, b' = L b + c`, computed in float64 and rounded
    once. Modules that are used in several places, have hooks, or have a method of their own are left alone.

    A network may run a part of an `nn.Sequential`, or look between its modules. `calls` says how often each module of a
    `nn.Sequential`, and itself, runs in one pass: all must run equally often. Without `calls`, only an `nn.Sequential`
    that is the network, or lies in such ones alone, certainly runs as a whole. Returns, for a convolution, what was
    folded into it, or what was not and why.
    """
    named = names_by_module(model)
    wanted, told = set(convolutions), {}
    for parent, names in named.items():
        for conv, follower, name in _consecutive_modules(parent):
            if conv not in wanted or any(len(named[module]) > 1 for module in (parent, conv, follower)):
                continue
            if type(parent) is nn.Sequential and not _run_together(
                model, names[0], named[conv] + named[follower], calls
            ):
                continue
            assert isinstance(conv, AnyConvolution)
            linear = _normalisation(conv, follower) if type(parent) is nn.Sequential else _matrix(conv, follower)
            if linear is None:
                continue
            kind = type(follower).__name__
            reasons = [reason for module in (parent, conv, follower) if (reason := _why_not(module))]
            if reasons:
                told[conv] = f"{kind} not folded in: {reasons[0]}"
                continue
            _fold(conv, *linear)
            setattr(parent, name, nn.Identity().train(follower.training))
            told[conv] = f"{kind} folded in"
    return told


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


def _matrix(conv: AnyConvolution, follower: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Returns the matrix (outputs, channels) and the bias of a linear map of channels; None if it is another module."""
    if type(follower) is not nn.Linear or follower.in_features != conv.out_channels or conv.groups != 1:
        return None
    weight = follower.weight.detach().double()
    return weight, weight.new_zeros(len(weight)) if follower.bias is None else follower.bias.detach().double()


def _normalisation(conv: AnyConvolution, follower: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Returns the factor and the bias of each channel in batch normalisation; None if it is another module."""
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


def _why_not(module: nn.Module) -> str | None:
    """Returns why folding would lose what a module does, for an end of a sentence; None if it would not."""
    own = [key for key, value in vars(module).items() if callable(value) and hasattr(type(module), key)]
    if own:
        return f"{own[0]} of a {type(module).__name__} was replaced on the instance"
    return f"a {type(module).__name__} has hooks" if any(getattr(module, hooks) for hooks in CALLS) else None


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
