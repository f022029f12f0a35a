"""One call of a layer without content: what a path needs to know before it sees an image."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from convattn.encodings import Encoding
from convattn.functional import Work
from convattn.grid import Axis, Geometry
from convattn.layers.arguments import fitting_path
from convattn.layers.values import whole_maps

if TYPE_CHECKING:
    from convattn.layers.relative import RelativeAttention

__all__ = ["Call", "call_of"]


@dataclass(frozen=True)
class Call:
    """One call of a layer without content: everything but the images' numbers.

    Attributes:
        encoding: Displacement → score per head.
        value: W_val, or W_h itself.
        output: W_out; None where `value` is W_h.
        bias: b, or None.
        geometry: Window, stride, padding and dilation.
        spatial: Sizes of the images.
        axes: Queries and keys along each axis.
        work: Sizes.
        impl: Path demanded, or "auto".
        dropout: Probability of dropping a weight, 0 in evaluation.
        dtype: Dtype of the images.
        device: Their device.
    """

    encoding: Encoding
    value: Tensor
    output: Tensor | None
    bias: Tensor | None
    geometry: Geometry
    spatial: tuple[int, ...]
    axes: tuple[Axis, ...]
    work: Work
    impl: str
    dropout: float
    dtype: torch.dtype
    device: torch.device

    @property
    def softmax_dtype(self) -> torch.dtype:
        """Dtype of scores and softmax: at least float32."""
        return torch.promote_types(self.dtype, torch.float32)

    def with_numbers(self, value: Tensor, output: Tensor | None, bias: Tensor | None) -> "Call":
        """Returns the same call with other tensors for the same numbers.

        Args:
            value: W_val, or W_h itself.
            output: W_out; None where `value` is W_h.
            bias: b, or None.

        Returns:
            The call.
        """
        return replace(self, value=value, output=output, bias=bias)

    def maps(self) -> Tensor:
        """Returns W_h, (heads, outputs, channels // groups)."""
        return whole_maps(self.value, self.output, self.work.groups)


def call_of(
    layer: "RelativeAttention",
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    axes: tuple[Axis, ...],
) -> Call:
    """Gathers what a path without content needs to know before it sees an image.

    Args:
        layer: The layer, in its present mode.
        shape: Shape of the images, (batch, in_channels, *spatial).
        dtype: Their dtype.
        device: Their device.
        axes: Queries and keys along each axis.

    Returns:
        The call.
    """
    value, output = layer.values.factors()
    return Call(
        encoding=layer.encoding,
        value=value,
        output=output,
        bias=layer.bias,
        geometry=layer.geometry,
        spatial=tuple(shape[2:]),
        axes=axes,
        work=_work(value, output, shape, axes, dtype.itemsize),
        impl=fitting_path(layer.impl, layer.encoding, content=layer.content is not None, dropout=layer.dropout),
        dropout=layer.dropout if layer.training else 0.0,
        dtype=dtype,
        device=device,
    )


def _work(value: Tensor, output: Tensor | None, shape: Sequence[int], axes: Sequence[Axis], itemsize: int) -> Work:
    """Gathers the sizes of a call, of which costs are made."""
    return Work(
        batch=shape[0],
        channels=shape[1],
        outputs=(value if output is None else output).shape[1],
        heads=len(value),
        groups=shape[1] // value.shape[2],
        queries=tuple(len(axis.queries) for axis in axes),
        keys=tuple(axis.keys for axis in axes),
        inner=value.shape[1],
        factored=output is not None,
        itemsize=itemsize,
    )
