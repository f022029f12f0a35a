"""One call of a layer without content: what a path needs to know before it sees an image."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from convattn.encodings import Encoding
from convattn.functional import Work
from convattn.grid import Axis, Geometry
from convattn.layers.values import FactoredValues, MergedValues

__all__ = ["Call", "work_of"]


@dataclass(frozen=True)
class Call:
    """One call of a layer without content: everything but the images' numbers.

    Attributes:
        encoding: Displacement → score per head.
        values: W_h.
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
    values: MergedValues | FactoredValues
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

    @property
    def values_known(self) -> bool:
        """Whether parameters may be looked at, which a compiler's graph may not."""
        numbers = self.encoding.parameters()
        known = all(isinstance(number, nn.Parameter) and not number.is_meta for number in numbers)
        return known and not torch.compiler.is_compiling()

    @property
    def learns_encoding(self) -> bool:
        """Whether gradients flow to the encoding's parameters."""
        return torch.is_grad_enabled() and any(number.requires_grad for number in self.encoding.parameters())


def work_of(
    values: MergedValues | FactoredValues, shape: Sequence[int], axes: Sequence[Axis], dtype: torch.dtype
) -> Work:
    """Gathers the sizes of a call.

    Args:
        values: W_h.
        shape: Shape of the images, (batch, channels, *spatial).
        axes: Queries and keys along each axis.
        dtype: Dtype of the images.

    Returns:
        The sizes, of which costs are made.
    """
    value, output = values.factors()
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
        itemsize=dtype.itemsize,
    )
