"""Any convolution, of torch or of a subclass, as a window of taps: one displacement and one matrix each."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import TorchFunctionMode

from convattn.convert.surgery import copy_module, full_name, is_own_hook
from convattn.errors import UnsupportedModelError
from convattn.functional import combine_heads, pad_keys, query_pixels
from convattn.functional.reference import rounded_differently
from convattn.grid import Axis, Geometry
from convattn.layers import NormalisedConv
from convattn.wording import counted

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
TransposedConvolution = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
AnyConvolution = Convolution | TransposedConvolution

CONVOLUTIONS: dict[int, type[Convolution]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED_CONVOLUTIONS: dict[int, type[TransposedConvolution]] = {
    1: nn.ConvTranspose1d,
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}
SUPPORTED_CONVOLUTIONS: dict[type[nn.Module], int] = {
    kind: dims for kinds in (CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS) for dims, kind in kinds.items()
}
"""The modules that `conv_to_attention` takes, with their number of axes. Subclasses may compute something else."""

SEED = 0
"""Seed of random images and of other roundings."""

_MANY_TAPS = 400
"""Taps beyond which a computation tap by tap takes too long."""

_BLOCK = 384
"""Terms that a matrix product sums one after another before it adds what they make to the rest."""

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of the weights that are converted."""


@dataclass(frozen=True)
class Taps:
    """A convolution as taps: y[o] = b + Σ_t W[t] x̃[query(o) + Δ_t]."""

    # Window, stride, padding and dilation. A transposed convolution has an input dilation and no stride
    geometry: Geometry
    displacements: tuple[
        tuple[int, ...], ...
    ]  # Δ_t, from the query to the tap, in pixels; row-major over the window
    maps: Float[Tensor, "taps outputs channels"]  # W[t], (taps, outputs, inputs // groups)
    bias: Float[Tensor, " outputs"] | None  # b, (outputs,), or None
    inputs: int  # Channels in
    groups: int  # Number of blocks of each W[t]


def read_taps(conv: nn.Module) -> Taps:
    """Reads one of `SUPPORTED_CONVOLUTIONS`, not a subclass, as taps with copied tensors."""
    require_supported(conv)
    dims = SUPPORTED_CONVOLUTIONS[type(conv)]
    weight: Tensor = conv.weight.detach().flatten(2)  # type: ignore[union-attr, operator]
    options = {
        "kernel_size": conv.kernel_size,
        "dilation": conv.dilation,
        "padding_mode": conv.padding_mode,
    }
    groups: int = conv.groups  # type: ignore[assignment]
    if isinstance(conv, TransposedConvolution):
        sizes = zip(conv.kernel_size, conv.dilation, conv.padding, conv.output_padding, strict=True)
        # With this padding a plain convolution of the dilated input equals the transposed one
        padding = [(d * (k - 1) - int(p), d * (k - 1) - int(p) + extra) for k, d, p, extra in sizes]
        geometry = Geometry.parse(dims, padding=padding, input_dilation=conv.stride, **options)  # type: ignore[arg-type]
        maps = rearrange(weight.flip(-1), "(groups i) o taps -> taps (groups o) i", groups=groups)
    else:
        geometry = Geometry.parse(dims, padding=conv.padding, stride=conv.stride, **options)  # type: ignore[arg-type]
        maps = rearrange(weight, "o i taps -> taps o i")
    bias = None if conv.bias is None else conv.bias.detach().clone()  # type: ignore[union-attr, operator]
    displacements = tuple(displacement for _, displacement in geometry.taps())
    return Taps(geometry, displacements, maps.clone(), bias, conv.in_channels, groups)  # type: ignore[arg-type]


def require_supported(conv: nn.Module) -> None:
    """Raises UnsupportedModelError unless a module is an initialised convolution of torch with finite real weights.

    The weights must also fit its arguments, and must not be computed by hooks.
    """
    reason = _why_unsupported(conv)
    if reason is not None:
        raise UnsupportedModelError(f"cannot convert {type(conv).__name__}: {reason}")


def _why_unsupported(conv: nn.Module) -> str | None:
    """Returns why `require_supported` refuses a module; None if it does not."""
    parameters = {name: getattr(conv, name, None) for name in ("weight", "bias")}
    for name, tensor in parameters.items():
        if isinstance(tensor, UninitializedParameter):
            return f"its {name} is not initialised; run it once first"
    if type(conv) not in SUPPORTED_CONVOLUTIONS:
        parent = next(
            (known.__name__ for known in SUPPORTED_CONVOLUTIONS if isinstance(conv, known)), None
        )
        if parent is not None:
            return f"it is a subclass of {parent} and may compute something else"
        return f"supported convolutions are {', '.join(known.__name__ for known in SUPPORTED_CONVOLUTIONS)}"
    assert isinstance(conv, AnyConvolution)
    channels = (conv.out_channels, conv.in_channels // conv.groups)
    if isinstance(conv, TransposedConvolution):
        channels = (conv.in_channels, conv.out_channels // conv.groups)
    sizes = {"weight": (*channels, *conv.kernel_size), "bias": (conv.out_channels,)}
    if parameters["bias"] is None:
        del parameters["bias"]
    reasons = [_why_not_parameter(name, tensor, sizes[name]) for name, tensor in parameters.items()]
    return next((reason for reason in reasons if reason is not None), None)


def _why_not_parameter(name: str, tensor: object, shape: tuple[int, ...]) -> str | None:
    if not isinstance(tensor, nn.Parameter):
        return f"its {name} is not a parameter; make it one first (what pruning computes with `prune.remove`)"
    reason = why_not_numbers(name, tensor)
    if reason is None and not tensor.numel():
        return f"its {name} is empty, {tuple(tensor.shape)}"
    if reason is None and tensor.shape != shape:
        return f"its {name} must have shape {shape} to fit its arguments, but has shape {tuple(tensor.shape)}"
    return reason


def why_not_numbers(name: str, tensor: Tensor) -> str | None:
    """Returns why a module's tensor `name` does not hold finite real floating-point numbers; None if it does."""
    if tensor.is_meta:
        return f"its {name} is on the meta device and has no values"
    if tensor.dtype not in _FLOATING:
        return f"its {name} must be float16, bfloat16, float32 or float64, but is {tensor.dtype}"
    count = int((~torch.isfinite(tensor)).sum())
    return (
        f"its {name} must be finite, but holds {counted(count, 'NaN or infinite number')}"
        if count
        else None
    )


def tap_by_tap(
    taps: Taps, x: Float[Tensor, "batch channels *spatial"]
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes a convolution in its own dtype as a sum over taps."""
    y = None
    for pixels, weight in zip(tap_pixels(taps, x), taps.maps, strict=True):
        term = combine_heads(pixels[:, None], weight[None], taps.groups)
        y = term if y is None else y + term
    assert y is not None
    return _with_bias(taps, y)


def term_by_term(
    taps: Taps, x: Float[Tensor, "batch channels *spatial"]
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes a convolution as matrix products do at worst: one term after another, in at least float32."""
    kind = torch.promote_types(x.dtype, torch.float32)
    every, terms = list(tap_pixels(taps, x)), 0
    total = block = torch.zeros((), dtype=kind)
    for pixels, weight in zip(every, taps.maps, strict=True):
        seen = rearrange(
            pixels.to(kind), "b (groups c) ... -> c b groups 1 (...)", groups=taps.groups
        )
        columns = rearrange(
            weight.to(kind), "(groups outputs) c -> c groups outputs 1", groups=taps.groups
        )
        for one, column in zip(seen, columns, strict=True):
            if terms % _BLOCK == 0:
                total = total + block
                block = torch.zeros_like(one * column)
            block.addcmul_(one, column)
            terms += 1
    return _with_bias(taps, (total + block).reshape(len(x), -1, *every[0].shape[2:]).to(x.dtype))


def tap_pixels(taps: Taps, x: Tensor) -> Iterator[Tensor]:
    """Yields, for each tap, the pixels that all queries see there."""
    axes, keys = taps.geometry.axes(x.shape[2:]), pad_keys(x, taps.geometry)
    for displacement in taps.displacements:
        shifted = [
            Axis(range(axis.queries.start + d, axis.queries.stop + d, axis.queries.step), axis.keys)
            for axis, d in zip(axes, displacement, strict=True)
        ]
        yield query_pixels(keys, shifted)


def _with_bias(taps: Taps, y: Tensor) -> Tensor:
    return y if taps.bias is None else y + taps.bias.view(-1, *(1,) * (y.ndim - 2))


def summed_otherwise(conv: AnyConvolution, x: Tensor) -> Tensor:
    """Computes a convolution in another order: tap by tap, or for large kernels from an image rounded differently."""
    if x.ndim < conv.weight.ndim:  # a single image
        return summed_otherwise(conv, x[None])[0]
    few = prod(conv.kernel_size) <= _MANY_TAPS
    return tap_by_tap(read_taps(conv), x) if few else conv(rounded_differently(x, SEED))


class OneAfterAnother(TorchFunctionMode):
    """Sums channels one after another, as some runtimes do; in large layers several at once."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        axis = {
            functional.linear: -1,
            functional.conv1d: 1,
            functional.conv2d: 1,
            functional.conv3d: 1,
        }.get(func)
        if axis is None or kwargs or args[0].shape[axis] != args[1].shape[1]:
            return func(*args, **(kwargs or {}))
        at_once = 1 + (args[0].numel() * args[1].shape[0] >> 25)
        (x, *others), (weight, *weights) = args[0].split(at_once, axis), args[1].split(at_once, 1)
        y = func(x, weight, *args[2:])
        for x, weight in zip(others, weights, strict=True):
            y = y + func(x, weight, None, *args[3:])
        return y


_SAME = "timm.layers.conv2d_same.Conv2dSame"
"""Class of convolutions that always pad like TensorFlow's "SAME"."""

_STANDARDISED: dict[str, str | None] = {
    "timm.layers.std_conv.StdConv2d": None,
    "timm.layers.std_conv.StdConv2dSame": "same_pad",
    "timm.layers.std_conv.ScaledStdConv2d": None,
    "timm.layers.std_conv.ScaledStdConv2dSame": "same_pad",
    "transformers.models.bit.modeling_bit.WeightStandardizedConv2d": "pad",
}
"""Classes of convolutions that standardise their weight, with the attribute that tells whether they pad like "SAME"."""

REFUSED: dict[str, str] = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "it trains on several devices; convert its `module`",
    "timm.layers.cond_conv2d.CondConv2d": "its kernels depend on the input",
    "timm.layers.conv2d_same.Conv2dSameExport": "it pads every image like the first one that it saw; use Conv2dSame",
    "torchvision.ops.deform_conv.DeformConv2d": "its taps move with the input",
}
"""Modules that cannot be converted or copied, by full name, with the reason."""

_HARMLESS = {
    *(
        "__init__",
        "__module__",
        "__qualname__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__repr__",
    ),
    *(
        "__static_attributes__",
        "__firstlineno__",
        "__annotate_func__",
        "__annotations_cache__",
        "__constants__",
    ),
    *(
        "__orig_bases__",
        "__parameters__",
        "__abstractmethods__",
        "_abc_impl",
        "reset_parameters",
        "extra_repr",
    ),
}
"""What a subclass may define without computing something else."""

OPTIONS = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
"""Arguments that a convolution holds as attributes, beside its padding mode."""


def _standardised(module: nn.Module) -> Tensor:
    """Returns each output's weights with mean 0 and variance 1, times a gain if the module has one."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    gain, eps = getattr(module, "gain", None), float(module.eps)  # type: ignore[arg-type]
    scale = None if gain is None else (gain * module.scale).view(-1)
    flat = weight.reshape(1, len(weight), -1)
    made = functional.batch_norm(
        flat, None, None, weight=scale, training=True, momentum=0.0, eps=eps
    )
    return made.reshape_as(weight)


class PlainConvolution(NamedTuple):
    """The plain convolution that computes what a module of a network computes."""

    names: tuple[str, ...]  # Names of the module in the network, the first one first
    conv: AnyConvolution | NormalisedConv  # No subclass; it may share memory with the module
    same: bool  # Whether the image is first padded by its size, as `SamePaddedAttention` does
    weight: (
        nn.Parameter | None
    )  # The module's own parameter, if it is the kernel; None if the kernel is computed
    bias_is_own: bool  # Whether the bias is the module's parameter `bias` itself, or missing
    notes: tuple[str, ...]  # What changes by the conversion


def read_plain(module: nn.Module, names: Sequence[str]) -> PlainConvolution:
    """Reads a convolution of torch or of a subclass, with any parametrisation, as a plain one; or a normalised one.

    If it may compute something else, UnsupportedModelError holds the reason alone.
    """
    if isinstance(module, NormalisedConv):
        return PlainConvolution(
            tuple(names), copy.copy(module), same=False, weight=None, bias_is_own=True, notes=()
        )
    kind = parametrize.type_before_parametrizations(module)
    name = full_name(kind)
    base = next(known for known in SUPPORTED_CONVOLUTIONS if issubclass(kind, known))
    if name != _SAME and name not in _STANDARDISED:
        _require_nothing_overridden(kind, base)
    replaced = sorted({"forward", "_conv_forward", "_output_padding"} & vars(module).keys())
    if replaced:
        raise UnsupportedModelError(f"its method {replaced[0]} was replaced on the instance")
    computed, working = _without_reparametrisation(module)
    for tensor in ("weight", "bias"):
        if tensor not in {*computed, *working._parameters}:
            raise UnsupportedModelError(f"its {tensor} is not a parameter; make it one first")
    held = {**working._parameters, **working._buffers, **working._modules}.keys() - {
        "weight",
        "bias",
    }
    if name in _STANDARDISED:
        held -= {"gain", "pad"}
    if parametrize.is_parametrized(module) and not computed.keys() - {"weight", "bias"}:
        held -= {"parametrizations"}
    if held:
        raise UnsupportedModelError(
            f"it holds more than a weight and a bias: {', '.join(sorted(held))}"
        )
    conv = _build_plain(base, working, _standardised if name in _STANDARDISED else None)
    reason = _why_unsupported(conv)
    if reason is not None:
        raise UnsupportedModelError(reason)
    notes = [
        f"its {tensor} is computed by {how}; its present value was converted"
        for tensor, how in computed.items()
    ]
    if name in _STANDARDISED:
        notes.append(
            "the standardised weight was converted; further training does not standardise it again"
        )
    padding = _STANDARDISED.get(name)
    return PlainConvolution(
        names=tuple(names),
        conv=conv,
        same=name == _SAME
        or (padding is not None and getattr(module, padding) not in (None, False)),
        weight=module._parameters["weight"]
        if name not in _STANDARDISED and "weight" not in computed
        else None,
        bias_is_own="bias" not in computed,
        notes=tuple(notes),
    )


def _require_nothing_overridden(kind: type, base: type) -> None:
    """Raises if a subclass overrides anything that its base class uses."""
    made = base(1, 1, 1, device="meta")
    for part in kind.__mro__:
        if part in base.__mro__:
            continue
        anew = sorted(
            n
            for n in vars(part)
            if n not in _HARMLESS and (hasattr(made, n) or n == "__getattribute__")
        )
        if anew:
            what = (
                f"{full_name(part)} is a subclass of {base.__name__} that defines {', '.join(anew)}"
            )
            raise UnsupportedModelError(f"{what}; it may compute something else")


def _without_reparametrisation(module: nn.Module) -> tuple[dict[str, str], nn.Module]:
    """Returns which tensors are computed and by what, and a module to read them from; itself if none are."""
    hooked = any(is_own_hook(hook) for hook in module._forward_pre_hooks.values())
    if not hooked and not parametrize.is_parametrized(module):
        return {}, module
    computed: dict[str, str] = {}
    with (
        torch.enable_grad()
    ):  # where gradients are off, a computed weight would come back as one that does not learn
        working = copy_module(module).eval()  # a spectral norm in training would take another step
        if parametrize.is_parametrized(
            working
        ):  # not removed: that would change the class, which copies share
            for name, steps in working.parametrizations.items():  # type: ignore[union-attr, operator]
                computed[name] = " and ".join(
                    type(step).__name__.removeprefix("_") for step in steps
                )
        for hook in [hook for hook in working._forward_pre_hooks.values() if is_own_hook(hook)]:
            if isinstance(hook, WeightNorm | SpectralNorm):
                computed[hook.name] = type(hook).__name__
                (remove_weight_norm if isinstance(hook, WeightNorm) else remove_spectral_norm)(
                    working, hook.name
                )
            elif isinstance(hook, prune.BasePruningMethod):
                computed[hook._tensor_name] = "pruning"
                prune.remove(working, hook._tensor_name)
    return computed, working


def _build_plain(
    base: type[nn.Module], working: nn.Module, kernel_of: Callable[[nn.Module], Tensor] | None
) -> AnyConvolution:
    """Builds the plain convolution around the tensors of another; `kernel_of` computes its kernel, if given."""
    options = {name: getattr(working, name) for name in (*OPTIONS, "padding_mode")}
    if not options["in_channels"] or not options["out_channels"]:
        raise UnsupportedModelError("it has no channels")
    if base in TRANSPOSED_CONVOLUTIONS.values():
        options["output_padding"] = working.output_padding
    conv = base(**options, bias=False, device="meta")
    ahead = "_reversed_padding_repeated_twice"  # what torch pads by before the product, with other modes than zeros
    if options["padding_mode"] != "zeros" and list(getattr(working, ahead)) != list(
        getattr(conv, ahead)
    ):
        raise UnsupportedModelError(
            "its padding was changed after it was made, and torch still pads as before"
        )
    for name in ("weight", "bias"):
        with torch.enable_grad():
            tensor = getattr(working, name)
        if tensor is None:
            continue
        if type(tensor) not in (Tensor, nn.Parameter) or type(tensor.data) is not Tensor:
            raise UnsupportedModelError(
                f"its {name} is a {full_name(type(tensor))}, not a plain tensor"
            )
        with torch.no_grad():
            made = kernel_of(working) if name == "weight" and kernel_of else tensor.detach()
        conv.register_parameter(name, nn.Parameter(made, requires_grad=tensor.requires_grad))
    return conv.train(working.training)  # type: ignore[return-value]
