"""Layers of this library with content, of which all heads are replaced."""

from collections.abc import Sequence
from typing import final

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from convattn.adapters.replacement.kernel_means import KernelMeans
from convattn.adapters.replacement.measured import MeasuredHeads
from convattn.convert.classes import ATTENTION_LAYERS
from convattn.errors import ShapeError, UnsupportedModelError
from convattn.layers import FactoredValues, RelativeAttention

OWN = ATTENTION_LAYERS
"""Classes that `require_replaceable` takes."""


@final
class ConvolvedImages(nn.Module):
    """A layer from images to images whose heads average by displacement: y[q] = b + Σ_h W_h Σ_k A_h[q, k] x[k].

    Attributes:
        value: What is averaged: W_val, (heads, width, inputs), or None for the pixels themselves.
        output: What follows: W_out or W_h, (heads, outputs, width or inputs).
        bias: b, or None.
        means: The heads, in the order of `value` and `output`.
    """

    value: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: RelativeAttention, groups: Sequence[MeasuredHeads]) -> None:
        """Takes over the matrices of a layer, with all of its heads in groups of like size."""
        super().__init__()
        order = torch.tensor([head for group in groups for head in group.heads])
        values, like = layer.values, next(layer.values.parameters())
        factored = isinstance(values, FactoredValues)
        self.value = _taken(values.value[order], values.value) if factored else None
        self.output = _taken(values.output[order], values.output) if factored else _taken(values.maps()[order], like)
        self.bias = None if layer.bias is None else _taken(layer.bias, layer.bias)
        kind = {"device": like.device, "dtype": torch.promote_types(like.dtype, torch.float32)}
        means = nn.ModuleList(KernelMeans(group.kernel.to(**kind), group.first) for group in groups)
        self.means = means.requires_grad_(like.requires_grad)
        self.dims = layer.dims

    def forward(self, x: Float[Tensor, "batch inputs *sizes"]) -> Float[Tensor, "batch outputs *sizes"]:
        """Averages.

        Args:
            x: Images.

        Returns:
            Images of the same size.

        Raises:
            ShapeError: The images have another number of axes.
        """
        if x.ndim != self.dims + 2:
            raise ShapeError(f"x must have {self.dims + 2} axes, batch and channels first, but has {x.ndim}")
        sizes, pixels = tuple(x.shape[2:]), rearrange(x, "batch inputs ... -> batch (...) inputs")
        if self.value is None:
            values = pixels[:, None].expand(-1, len(self.output), -1, -1)
        else:
            values = einsum(self.value, pixels, "heads width inputs, batch n inputs -> batch heads n width")
        pairs = zip(self.means, values.split([means.heads for means in self.means], dim=1), strict=True)
        y = torch.cat([means(part, sizes) for means, part in pairs], dim=1)
        y = einsum(self.output, y, "heads outputs width, batch heads n width -> batch outputs n")
        return (y if self.bias is None else y + self.bias[:, None]).unflatten(2, sizes)


def _taken(numbers: Tensor, like: nn.Parameter) -> nn.Parameter:
    """Copies numbers of the old layer, which learn if the parameter does that they come from."""
    return nn.Parameter(numbers.detach().clone(), requires_grad=like.requires_grad)


def require_replaceable(layer: RelativeAttention, replaced: int) -> None:
    """Raises UnsupportedModelError with the reason alone if a layer cannot be rebuilt with so many heads replaced."""
    geometry = layer.geometry
    sizes = tuple(size + 2 for size in geometry.kernel_size)
    reasons = {
        "it has no content: attention_to_conv makes a convolution of it": layer.content is None,
        "its channels are in groups": layer.groups != 1,
        "its keys are not the pixels that its queries are at": any(
            axis.keys != size or axis.queries != range(size)
            for axis, size in zip(geometry.axes(sizes), sizes, strict=True)
        ),
        "its other heads attend by content, and only whole layers of its class are replaced": 0
        < replaced
        < layer.num_heads,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise UnsupportedModelError(found[0])
