"""Any convolution of torch as a window of taps: one displacement and one matrix each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from convattn.convert.classes import SUPPORTED_CONVOLUTIONS, AnyConvolution, TransposedConvolution
from convattn.errors import UnsupportedModelError
from convattn.grid import Geometry
from convattn.wording import counted

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of the weights that are converted."""


@dataclass(frozen=True)
class Taps:
    """A convolution as taps: y[o] = b + Σ_t W[t] x̃[query(o) + Δ_t]."""

    # Window, stride, padding and dilation. A transposed convolution has an input dilation and no stride
    geometry: Geometry
    displacements: tuple[tuple[int, ...], ...]  # Δ_t, from the query to the tap, in pixels; row-major over the window
    maps: Float[Tensor, "taps outputs channels"]  # W[t], (taps, outputs, inputs // groups)
    bias: Float[Tensor, " outputs"] | None  # b, (outputs,), or None
    inputs: int  # Channels in
    groups: int  # Number of blocks of each W[t]


def read_taps(conv: nn.Module) -> Taps:
    """Reads one of `SUPPORTED_CONVOLUTIONS`, not a subclass, as taps with copied tensors.

    `require_supported` says what is refused.
    """
    require_supported(conv)
    dims = SUPPORTED_CONVOLUTIONS[type(conv)]
    weight: Tensor = conv.weight.detach().flatten(2)  # type: ignore[union-attr, operator]
    options = {"kernel_size": conv.kernel_size, "dilation": conv.dilation, "padding_mode": conv.padding_mode}
    groups: int = conv.groups  # type: ignore[assignment]
    if isinstance(conv, TransposedConvolution):
        geometry = Geometry.parse(dims, padding=_transposed_padding(conv), input_dilation=conv.stride, **options)  # type: ignore[arg-type]
        maps = rearrange(weight.flip(-1), "(groups i) o taps -> taps (groups o) i", groups=groups)
    else:
        geometry = Geometry.parse(dims, padding=conv.padding, stride=conv.stride, **options)  # type: ignore[arg-type]
        maps = rearrange(weight, "o i taps -> taps o i")
    bias = None if conv.bias is None else conv.bias.detach().clone()  # type: ignore[union-attr, operator]
    displacements = tuple(displacement for _, displacement in geometry.taps())
    return Taps(geometry, displacements, maps.clone(), bias, conv.in_channels, groups)  # type: ignore[arg-type]


def _transposed_padding(conv: TransposedConvolution) -> Sequence[tuple[int, int]]:
    """Returns the padding with which a plain convolution of the dilated input equals the transposed one."""
    sizes = zip(conv.kernel_size, conv.dilation, conv.padding, conv.output_padding, strict=True)
    return [(d * (k - 1) - int(p), d * (k - 1) - int(p) + extra) for k, d, p, extra in sizes]


def require_supported(conv: nn.Module) -> None:
    """Raises UnsupportedModelError unless a module is an initialised convolution of torch with finite real weights.

    The weights must also fit its arguments, and must not be computed by hooks.
    """
    kind = type(conv).__name__
    parameters = [(name, getattr(conv, name, None)) for name in ("weight", "bias")]
    for name, tensor in parameters:
        if isinstance(tensor, UninitializedParameter):
            raise UnsupportedModelError(f"cannot convert {kind}: its {name} is not initialised; run it once first")
    if type(conv) not in SUPPORTED_CONVOLUTIONS:
        known = ", ".join(supported.__name__ for supported in SUPPORTED_CONVOLUTIONS)
        parents = [supported.__name__ for supported in SUPPORTED_CONVOLUTIONS if isinstance(conv, supported)]
        reason = (
            f"it is a subclass of {parents[0]} and may compute something else"
            if parents
            else f"supported convolutions are {known}"
        )
        raise UnsupportedModelError(f"cannot convert {kind}: {reason}")
    for name, tensor in parameters:
        if tensor is None and name == "bias":
            continue
        if not isinstance(tensor, nn.Parameter):
            raise UnsupportedModelError(
                f"cannot convert {kind}: its {name} is not a parameter; make it one first (what pruning"
                " computes with `prune.remove`)"
            )
        require_numbers(kind, name, tensor)
        if not tensor.numel():
            raise UnsupportedModelError(f"cannot convert {kind}: its {name} is empty, {tuple(tensor.shape)}")
        size = _size(conv, name)
        if tensor.shape != size:
            raise UnsupportedModelError(
                f"cannot convert {kind}: its {name} must have shape {size} to fit its arguments, but has shape"
                f" {tuple(tensor.shape)}"
            )


def _size(conv: nn.Module, name: str) -> tuple[int, ...]:
    """Returns the shape of the weight or the bias that fits a convolution's arguments."""
    assert isinstance(conv, AnyConvolution)
    inputs, outputs = conv.in_channels, conv.out_channels
    if name == "bias":
        return (outputs,)
    transposed = isinstance(conv, TransposedConvolution)
    first, second = (inputs, outputs) if transposed else (outputs, inputs)
    return (first, second // conv.groups, *conv.kernel_size)


def require_numbers(kind: str, name: str, tensor: Tensor) -> None:
    """Raises UnsupportedModelError unless tensor `name` of a `kind` holds finite real floating-point numbers."""
    if tensor.is_meta:
        raise UnsupportedModelError(f"cannot convert {kind}: its {name} is on the meta device and has no values")
    if tensor.dtype not in _FLOATING:
        known = "float16, bfloat16, float32 or float64"
        raise UnsupportedModelError(f"cannot convert {kind}: its {name} must be {known}, but is {tensor.dtype}")
    count = int((~torch.isfinite(tensor)).sum())
    if count:
        held = counted(count, "NaN or infinite number")
        raise UnsupportedModelError(f"cannot convert {kind}: its {name} must be finite, but holds {held}")
