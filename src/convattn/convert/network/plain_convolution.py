"""Subclassed, pruned or normalised convolutions as plain ones of torch, with the kernel that they compute with.

Classes of other libraries are recognised by their full names, so that none of these libraries has to be imported.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from convattn.convert.classes import SUPPORTED_CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS, AnyConvolution, full_name
from convattn.convert.copies import copy_module
from convattn.convert.taps import require_supported
from convattn.errors import UnsupportedModelError


@dataclass(frozen=True)
class _Foreign:
    """How a subclass of a torch convolution differs from it."""

    weight: Callable[[nn.Module], Tensor] | None = None  # Returns the module's kernel; None if that is its weight
    # Tells whether it pads like TensorFlow's "SAME"; None if it never does
    same: Callable[[nn.Module], bool] | None = None
    extra: tuple[str, ...] = ()  # Names of its further parameters
    note: str | None = None  # What changes by the conversion


def _standardised(module: nn.Module) -> Tensor:
    """Weight standardisation: each output's weights with mean 0 and variance 1, times a gain where there is one."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    gain, eps = getattr(module, "gain", None), float(module.eps)  # type: ignore[arg-type]
    scale = None if gain is None else (gain * module.scale).view(-1)
    flat = weight.reshape(1, len(weight), -1)
    made = functional.batch_norm(flat, None, None, weight=scale, training=True, momentum=0.0, eps=eps)
    return made.reshape_as(weight)


_FROZEN = "the standardised weight was converted; further training does not standardise it again"

_FOREIGN: dict[str, _Foreign] = {
    "timm.layers.conv2d_same.Conv2dSame": _Foreign(same=lambda _: True),
    "timm.layers.std_conv.StdConv2d": _Foreign(_standardised, note=_FROZEN),
    "timm.layers.std_conv.StdConv2dSame": _Foreign(_standardised, lambda module: bool(module.same_pad), note=_FROZEN),
    "timm.layers.std_conv.ScaledStdConv2d": _Foreign(_standardised, extra=("gain",), note=_FROZEN),
    "timm.layers.std_conv.ScaledStdConv2dSame": _Foreign(
        _standardised, lambda module: bool(module.same_pad), extra=("gain",), note=_FROZEN
    ),
    "transformers.models.bit.modeling_bit.WeightStandardizedConv2d": _Foreign(
        _standardised, lambda module: module.pad is not None, extra=("pad",), note=_FROZEN
    ),
}
"""Subclasses of torch's convolutions, by full name."""

REFUSED: dict[str, str] = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "it trains on several devices; convert its `module`",
    "timm.layers.cond_conv2d.CondConv2d": "its kernels depend on the input",
    "timm.layers.conv2d_same.Conv2dSameExport": "it pads every image like the first one that it saw; use Conv2dSame",
    "torchvision.ops.deform_conv.DeformConv2d": "its taps move with the input",
}
"""Modules that cannot be converted or copied, by full name, with the reason."""

_HARMLESS = {
    *("__init__", "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__repr__"),
    *("__static_attributes__", "__firstlineno__", "__annotate_func__", "__annotations_cache__", "__constants__"),
    *("__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl", "reset_parameters", "extra_repr"),
}
"""What a subclass may define without computing something else."""

_FIELDS = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")


@dataclass(frozen=True)
class PlainConvolution:
    """The plain convolution that computes what a module computes."""

    conv: AnyConvolution  # A convolution of torch itself, no subclass; it may share memory with the module
    same: bool  # Whether the image is first padded by its size, as `SamePaddedAttention` does
    own_weight: bool  # Whether the kernel is the module's parameter `weight` itself
    own_bias: bool  # Whether the bias is the module's parameter `bias` itself, or missing
    notes: tuple[str, ...]  # What changes by the conversion


def is_own_hook(hook: object) -> bool:
    """Tells whether a forward pre-hook is one by which torch computes a weight: normalisation or pruning."""
    return isinstance(hook, WeightNorm | SpectralNorm | prune.BasePruningMethod)


def read_plain(module: nn.Module) -> PlainConvolution:
    """Reads a convolution of torch or of a subclass, with any parametrisation, as a plain one.

    If it may compute something else, UnsupportedModelError holds the reason alone.
    """
    kind = parametrize.type_before_parametrizations(module)
    name = full_name(kind)
    foreign = _FOREIGN.get(name, _Foreign())
    base = next(known for known in SUPPORTED_CONVOLUTIONS if issubclass(kind, known))
    if name not in _FOREIGN:
        _require_nothing_overridden(kind, base)
    replaced = sorted({"forward", "_conv_forward", "_output_padding"} & vars(module).keys())
    if replaced:
        raise UnsupportedModelError(f"its method {replaced[0]} was replaced on the instance")
    computed, working = _without_reparametrisation(module)
    held_otherwise = [tensor for tensor in ("weight", "bias") if tensor not in {*computed, *working._parameters}]
    if held_otherwise:
        raise UnsupportedModelError(f"its {held_otherwise[0]} is not a parameter; make it one first")
    held = {**working._parameters, **working._buffers, **working._modules}.keys() - {"weight", "bias", *foreign.extra}
    if parametrize.is_parametrized(module) and not computed.keys() - {"weight", "bias"}:
        held -= {"parametrizations"}
    if held:
        raise UnsupportedModelError(f"it holds more than a weight and a bias: {', '.join(sorted(held))}")
    conv = _build_plain(base, working, foreign)
    try:
        require_supported(conv)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(str(error).partition(": ")[2]) from None
    notes = [f"its {tensor} is computed by {how}; its present value was converted" for tensor, how in computed.items()]
    notes += [foreign.note] if foreign.note else []
    same = foreign.same is not None and foreign.same(module)
    own_weight = foreign.weight is None and "weight" not in computed
    return PlainConvolution(conv, same, own_weight, "bias" not in computed, tuple(notes))


def _require_nothing_overridden(kind: type, base: type) -> None:
    """Raises if a subclass overrides anything that its base class uses."""
    made = base(1, 1, 1, device="meta")
    for part in kind.__mro__:
        if part in base.__mro__:
            continue
        anew = sorted(n for n in vars(part) if n not in _HARMLESS and (hasattr(made, n) or n == "__getattribute__"))
        if anew:
            raise UnsupportedModelError(
                f"{full_name(part)} is a subclass of {base.__name__} that defines"
                f" {', '.join(anew)}; it may compute something else"
            )


def _without_reparametrisation(module: nn.Module) -> tuple[dict[str, str], nn.Module]:
    """Returns which tensors are computed and by what, and a module to read them from; itself if none are."""
    hooks = [hook for hook in module._forward_pre_hooks.values() if is_own_hook(hook)]
    if not hooks and not parametrize.is_parametrized(module):
        return {}, module
    computed: dict[str, str] = {}
    with torch.enable_grad():  # where gradients are off, a computed weight would come back as one that does not learn
        working = copy_module(module).eval()  # a spectral norm in training would take another step
        if parametrize.is_parametrized(working):  # not removed: that would change the class, which copies share
            for name, steps in working.parametrizations.items():  # type: ignore[union-attr, operator]
                computed[name] = " and ".join(type(step).__name__.removeprefix("_") for step in steps)
        for hook in [hook for hook in working._forward_pre_hooks.values() if is_own_hook(hook)]:
            if isinstance(hook, WeightNorm | SpectralNorm):
                computed[hook.name] = type(hook).__name__
                (remove_weight_norm if isinstance(hook, WeightNorm) else remove_spectral_norm)(working, hook.name)
            elif isinstance(hook, prune.BasePruningMethod):
                name = hook._tensor_name
                computed[name] = "pruning"
                prune.remove(working, name)
    return computed, working


def _build_plain(base: type[nn.Module], working: nn.Module, foreign: _Foreign) -> AnyConvolution:
    """Builds the plain convolution around the tensors of another."""
    options = {name: getattr(working, name) for name in _FIELDS}
    if not options["in_channels"] or not options["out_channels"]:
        raise UnsupportedModelError("it has no channels")
    if base in TRANSPOSED_CONVOLUTIONS.values():
        options["output_padding"] = working.output_padding
    conv = base(**options, bias=False, device="meta")
    ahead = "_reversed_padding_repeated_twice"  # what torch pads by before the product, with other modes than zeros
    if options["padding_mode"] != "zeros" and list(getattr(working, ahead)) != list(getattr(conv, ahead)):
        raise UnsupportedModelError("its padding was changed after it was made, and torch still pads as before")
    for name in ("weight", "bias"):
        with torch.enable_grad():
            tensor = getattr(working, name)
        if tensor is None:
            continue
        if type(tensor) not in (Tensor, nn.Parameter) or type(tensor.data) is not Tensor:
            raise UnsupportedModelError(f"its {name} is a {full_name(type(tensor))}, not a plain tensor")
        learns = tensor.requires_grad
        with torch.no_grad():
            made = foreign.weight(working) if name == "weight" and foreign.weight else tensor.detach()
        conv.register_parameter(name, nn.Parameter(made, requires_grad=learns))
    conv.train(working.training)
    return conv  # type: ignore[return-value]
