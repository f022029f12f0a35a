"""Padding that depends on the image's size, like TensorFlow's "SAME", before an attention layer."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from convattn.errors import ArgumentError, must_be
from convattn.grid import Geometry
from convattn.layers import RelativeAttention


@final
class SamePaddedAttention(nn.Module):
    """An attention layer that first pads the image with zeros, so that stride s gives ⌈size / s⌉ queries per axis.

    An axis of n pixels gets `p = max(0, (⌈n/s⌉ − 1)·s + d·(k − 1) + 1 − n)` more, an odd one at the end. The number
    depends on the image, so they are added here and not by the layer.

    Attributes:
        attention: The layer, without padding of its own.

    Example:
        >>> import torch
        >>> from convattn.layers import RelativeAttention2d
        >>> layer = RelativeAttention2d(3, 5, 9, "quadratic", kernel_size=3, stride=2)
        >>> SamePaddedAttention(layer)(torch.zeros(1, 3, 8, 7)).shape
        torch.Size([1, 5, 4, 4])
    """

    def __init__(self, attention: RelativeAttention) -> None:
        """Wraps a layer, whose window, stride and dilation determine the padding.

        Args:
            attention: The layer, without padding of its own.

        Raises:
            ArgumentError: The layer pads or dilates its images.
        """
        super().__init__()
        if not attention.geometry.keeps_grid:
            raise ArgumentError(must_be("attention", "a layer without padding", attention))
        self.attention = attention
        self.training = attention.training

    @property
    def weight(self) -> Tensor:
        """The layer's matrices as a convolution's weight; networks read its dtype and device."""
        return self.attention.weight

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """Taps of the window along each axis."""
        return self.attention.kernel_size

    @property
    def stride(self) -> tuple[int, ...]:
        """Pixels from query to query along each axis."""
        return self.attention.stride

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Pads and attends.

        Args:
            x: Images (batch, in_channels, *spatial), or a single one without the batch.

        Returns:
            (batch, out_channels, *out) or (out_channels, *out) with ⌈size / stride⌉ pixels along each axis.
        """
        return self.attention(pad_same(x, self.attention.geometry))


def pad_same(x: Float[Tensor, "..."], geometry: Geometry) -> Float[Tensor, "..."]:
    """Pads an image or several with zeros, an odd one at the end, so that the window gives ⌈size / stride⌉ per axis."""
    pads = []
    sizes = x.shape[-len(geometry.stride) :]
    window = zip(sizes, geometry.kernel_size, geometry.stride, geometry.dilation, strict=True)
    for size, taps, step, spread in reversed(list(window)):
        total = max(0, (-(-size // step) - 1) * step + spread * (taps - 1) + 1 - size)
        pads += [total // 2, total - total // 2]
    return functional.pad(x, pads) if any(pads) else x
