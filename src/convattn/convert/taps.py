"""A convolution of torch as a window of taps, one displacement and one matrix each, and sums over taps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode

from convattn.budget import rounded_differently
from convattn.errors import UnsupportedModelError
from convattn.functional import add_bias, pad_keys
from convattn.functional.torch_modes import at_least_float32
from convattn.grid import Displacements, Geometry
from convattn.layers import (
    NormalisedConv,
    RelativeAttention,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)
from convattn.layers.relative import lay_out_as
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
    **{kind: dims for dims, kind in CONVOLUTIONS.items()},
    **{kind: dims for dims, kind in TRANSPOSED_CONVOLUTIONS.items()},
}
"""The modules that `conv_to_attention` takes, with their number of axes. Subclasses may compute something else."""

ATTENTION_LAYERS: tuple[type[RelativeAttention], ...] = (
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)
"""What `attention_to_conv` takes. Subclasses may compute something else."""

ATTENDS_ALREADY = (
    "it is attention already, as correlations; convert the attention that it was made from"
)
"""Why a `NormalisedConv` does not become attention."""

OPTIONS = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
"""Arguments that a convolution holds as attributes, beside its padding mode."""

_MANY_TAPS = 400
"""Taps beyond which a computation tap by tap takes too long."""

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of the weights that are converted."""


@dataclass(frozen=True)
class Taps:
    """A convolution as taps: y[o] = b + Σ_t W[t] x̃[query(o) + Δ_t]."""

    # Window, stride, padding and dilation. A transposed convolution has an input dilation and no stride
    geometry: Geometry
    # Δ_t, from the query to the tap, in pixels; row-major over the window, or as `maps_of` lists them
    displacements: Displacements
    maps: Float[Tensor, "taps outputs channels"]  # W[t], (taps, outputs, inputs // groups)
    bias: Float[Tensor, " outputs"] | None  # b, (outputs,), or None
    inputs: int  # Channels in
    groups: int  # Number of blocks of each W[t]


def read_taps(conv: Any) -> Taps:
    """Reads one of `SUPPORTED_CONVOLUTIONS`, not a subclass, as taps with copied tensors.

    Raises UnsupportedModelError for any other module, as `why_unsupported` says.
    """
    reason = why_unsupported(conv)
    if reason is not None:
        raise UnsupportedModelError(f"cannot convert {type(conv).__name__}: {reason}")
    geometry = geometry_of(type(conv), vars(conv))
    displacements = geometry.taps()
    if isinstance(conv, TransposedConvolution) and not geometry.spreads:
        displacements = displacements[::-1]
    maps = maps_of(conv.weight.detach(), type(conv), conv.groups, conv.stride).clone()
    bias = None if conv.bias is None else conv.bias.detach().clone()
    return Taps(geometry, displacements, maps, bias, conv.in_channels, conv.groups)


def geometry_of(kind: type[AnyConvolution], options: Mapping[str, Any]) -> Geometry:
    """Reads window, stride, padding and dilation of a kind of convolution from its attributes."""
    names = ("kernel_size", "dilation", "padding_mode")
    plain = {name: options[name] for name in names if name in options}
    if kind in TRANSPOSED_CONVOLUTIONS.values():
        padding = []  # with which a plain convolution of the dilated input equals the transposed one
        names = ("kernel_size", "dilation", "padding", "output_padding")
        for taps, step, pixels, extra in zip(*(options[name] for name in names), strict=True):
            before = step * (taps - 1) - int(pixels)
            padding.append((before, before + extra))
        plain |= {"padding": padding, "input_dilation": options["stride"]}
    else:
        plain |= {"padding": options["padding"], "stride": options["stride"]}
    return Geometry.parse(SUPPORTED_CONVOLUTIONS[kind], **plain)


def maps_of(
    weight: Tensor, kind: type[AnyConvolution], groups: int, stride: Sequence[int]
) -> Float[Tensor, "taps outputs channels"]:
    """Arranges the weight of a kind of convolution as a matrix for each tap, row-major over the window.

    The taps of a transposed convolution of stride 1 are from the last to the first. A layer that spreads no image shows
    by this order alone whether its heads came from such a weight, which is stored turned, or from a plain one.
    """
    if kind not in TRANSPOSED_CONVOLUTIONS.values():
        return rearrange(weight.flatten(2), "o i taps -> taps o i")
    maps = rearrange(weight.flatten(2), "(groups i) o taps -> taps (groups o) i", groups=groups)
    return maps if set(stride) == {1} else maps.flip(0)


def why_unsupported(conv: nn.Module) -> str | None:
    """Returns why `read_taps` refuses a module; None if it does not.

    It takes initialised convolutions of torch with finite real weights that fit their arguments and are parameters.
    """
    parameters = {name: getattr(conv, name, None) for name in ("weight", "bias")}
    for name, tensor in parameters.items():
        if isinstance(tensor, UninitializedParameter):
            return f"its {name} is not initialised; run it once first"
    if type(conv) not in SUPPORTED_CONVOLUTIONS:
        return _why_other_class(conv)
    assert isinstance(conv, AnyConvolution)
    channels = (conv.out_channels, conv.in_channels // conv.groups)
    if isinstance(conv, TransposedConvolution):
        channels = (conv.in_channels, conv.out_channels // conv.groups)
    shapes = {"weight": (*channels, *conv.kernel_size), "bias": (conv.out_channels,)}
    for name, tensor in parameters.items():
        if name == "bias" and tensor is None:
            continue
        if not isinstance(tensor, nn.Parameter):
            return f"its {name} is not a parameter; make it one first (what pruning computes with `prune.remove`)"
        reason = why_not_numbers(name, tensor)
        shape = tuple(tensor.shape)
        if reason is None and not tensor.numel():
            reason = f"its {name} is empty, {shape}"
        if reason is None and shape != shapes[name]:
            fitting = shapes[name]
            reason = (
                f"its {name} must have shape {fitting} to fit its arguments, but has shape {shape}"
            )
        if reason is not None:
            return reason
    return None


def _why_other_class(module: nn.Module) -> str:
    """Returns why a module that is none of `SUPPORTED_CONVOLUTIONS` is refused."""
    if isinstance(module, NormalisedConv):
        return ATTENDS_ALREADY
    for known in SUPPORTED_CONVOLUTIONS:
        if isinstance(module, known):
            return f"it is a subclass of {known.__name__} and may compute something else"
    names = ", ".join(known.__name__ for known in SUPPORTED_CONVOLUTIONS)
    return f"supported convolutions are {names}"


def why_not_numbers(name: str, tensor: Tensor) -> str | None:
    """Returns why a module's tensor `name` does not hold finite real floating-point numbers; None if it does."""
    reason = why_no_values(name, tensor)
    if reason is not None:
        return reason
    if tensor.dtype not in _FLOATING:
        return f"its {name} must be float16, bfloat16, float32 or float64, but is {tensor.dtype}"
    count = int((~torch.isfinite(tensor)).sum())
    if count:
        return f"its {name} must be finite, but holds {counted(count, 'NaN or infinite number')}"
    return None


def why_no_values(name: str, tensor: Tensor) -> str | None:
    """Returns why the numbers of a module's tensor `name` cannot be used here; None if they can."""
    if tensor.is_meta:
        return f"its {name} is on the meta device and has no values"
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return f"its {name} was made in torch.inference_mode and cannot learn; convert a copy.deepcopy made outside"
    return None


def put_tensors(conv: AnyConvolution, weight: Tensor, bias: Tensor | None) -> AnyConvolution:
    """Gives a convolution a weight and a bias, which it holds without a copy and trains if they learn; returns it."""
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            parameter = nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
            conv.register_parameter(name, parameter)
    return conv


def convolution(
    kind: type[AnyConvolution], weight: Tensor, bias: Tensor | None, **options: Any
) -> AnyConvolution:
    """Makes a convolution on a weight and a bias, as `put_tensors` gives them to it."""
    outputs, inputs, *taps = weight.shape
    if kind in TRANSPOSED_CONVOLUTIONS.values():
        inputs, outputs = outputs, inputs * options["groups"]
    else:
        inputs *= options["groups"]
    conv: Any = kind(inputs, outputs, tuple(taps), bias=False, device="meta", **options)  # type: ignore[arg-type]
    return put_tensors(conv, weight, bias)


def tap_by_tap(
    taps: Taps, x: Float[Tensor, "batch channels *spatial"]
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes a convolution in its own dtype as a sum over taps."""
    y = torch.zeros((), dtype=x.dtype)
    for pixels, weight in zip(tap_pixels(taps, x), taps.maps, strict=True):
        mixed = functional.conv1d(pixels.flatten(2), weight[..., None], groups=taps.groups)
        y = y + mixed.unflatten(2, pixels.shape[2:])
    return add_bias(y, taps.bias)


def term_by_term(
    taps: Taps, x: Float[Tensor, "batch channels *spatial"]
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes a convolution as matrix products do at worst: one term after another, in at least float32."""
    kind = at_least_float32(x.dtype)
    every = list(tap_pixels(taps, x))
    total = torch.zeros((), dtype=kind)
    for pixels, weight in zip(every, taps.maps, strict=True):
        channels = rearrange(
            pixels.to(kind), "b (groups c) ... -> c b groups 1 (...)", groups=taps.groups
        )
        columns = rearrange(
            weight.to(kind), "(groups outputs) c -> c groups outputs 1", groups=taps.groups
        )
        for channel, column in zip(channels, columns, strict=True):
            total = torch.addcmul(total, channel, column)
    sizes = every[0].shape[2:]
    y = total.reshape(len(x), -1, *sizes)
    return add_bias(y.to(x.dtype), taps.bias)


def tap_pixels(taps: Taps, x: Tensor) -> Iterator[Tensor]:
    """Yields, for each tap, the pixels that all queries see there."""
    keys = pad_keys(x, taps.geometry)
    every = [axis.queries for axis in taps.geometry.axes(x.shape[2:])]
    for displacement in taps.displacements:
        cuts = []
        for queries, d in zip(every, displacement, strict=True):
            cuts.append(slice(queries.start + d, queries.stop + d, queries.step))
        yield keys[(..., *cuts)]


def summed_otherwise(conv: AnyConvolution, x: Tensor) -> Tensor:
    """Computes a convolution in another order: tap by tap, or for large kernels from an image rounded differently."""
    if x.ndim < conv.weight.ndim:  # a single image
        return summed_otherwise(conv, x[None])[0]
    if prod(conv.kernel_size) <= _MANY_TAPS:
        return lay_out_as(x, tap_by_tap(read_taps(conv), x))
    return conv(rounded_differently(x, seed=0))


_CHANNELS = {
    functional.linear: -1,
    functional.conv1d: -2,
    functional.conv2d: -3,
    functional.conv3d: -4,
}
"""Functions that sum over channels, with the axis on which images, or a single one, have them."""


class OneAfterAnother(TorchFunctionMode):
    """Sums channels one after another, as some runtimes do; in large layers several at once."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        axis = _CHANNELS.get(func)
        if axis is None or kwargs or args[0].is_nested or args[0].shape[axis] != args[1].shape[1]:
            return func(*args, **(kwargs or {}))
        x, weight, *options = args
        at_once = 1 + (x.numel() * weight.shape[0] >> 25)
        images = x.split(at_once, axis)
        weights = weight.split(at_once, 1)
        y = func(images[0], weights[0], *options)
        for image, part in zip(images[1:], weights[1:], strict=True):
            y = y + func(image, part, None, *options[1:])
        return y
