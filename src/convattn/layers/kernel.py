"""The call and the attributes of a convolution, for a layer that takes its place."""

import math
from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from convattn.grid import Geometry


class HasKernel(nn.Module, ABC):
    """A layer that is called like a convolution, and has what other code reads from one: weight, window and steps.

    The weight needs one head per tap of the window.

    Attributes:
        in_channels: Number of channels of the images.
    """

    in_channels: int
    _geometry: Geometry

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:  # noqa: A002 - as nn.ConvNd calls it
        """Applies the attention to images x, or to a single image, as `nn.ConvNd` does.

        Args:
            input: x, (batch, in_channels, *spatial) or (in_channels, *spatial), in the dtype of the weights, or any but
                float64 under autocast.

        Returns:
            (batch, out_channels, *out) or (out_channels, *out), the size that `nn.ConvNd` with the same arguments
            gives.

        Raises:
            ShapeError: Wrong rank or number of channels, an image smaller than the window, or, frozen, of a size for
                which nothing was prepared.
            ArgumentError: The dtype of x is not that of the weights.
            DeviceError: FlexAttention cannot run here: gradients on the CPU, or a device that is neither CUDA nor CPU.
        """
        x = self.batch_of(input)
        return self._run(x) if x is input else self._run(x)[0]

    def batch_of(self, input: Tensor) -> Tensor:  # noqa: A002 - as nn.ConvNd calls it
        """Returns the images of a call, which is given the same arguments: a single image as a batch of one."""
        alone = isinstance(input, Tensor) and input.ndim == len(self._geometry.kernel_size) + 1
        return input[None] if alone and len(input) == self.in_channels else input

    @abstractmethod
    def _run(self, x: Tensor) -> Tensor:
        """Applies the layer to a batch of images."""

    @property
    def geometry(self) -> Geometry:
        """Window, stride, padding and dilation, one entry per axis; fixed when the layer is made."""
        return self._geometry

    @abstractmethod
    def _maps(self) -> Tensor:
        """Returns W_h, (heads, outputs, channels // groups)."""

    @property
    def weight(self) -> Tensor:
        """W_h as a convolution's weight, (outputs, inputs // groups, *kernel_size); it takes one head per tap."""
        maps, taps = self._maps(), self.geometry.kernel_size
        if len(maps) != math.prod(taps):
            raise AttributeError(f"a layer of {len(maps)} heads and a window of {taps} has no attribute 'weight'")
        return maps.movedim(0, -1).unflatten(-1, taps)

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """Taps of the window along each axis."""
        return self.geometry.kernel_size

    @property
    def stride(self) -> tuple[int, ...]:
        """Pixels from one query to the next, or, transposed, from one pixel of the dilated image to the next."""
        spread = self.geometry.input_dilation
        return spread if max(spread) > 1 else self.geometry.stride

    @property
    def dilation(self) -> tuple[int, ...]:
        """Pixels from one tap of the window to the next."""
        return self.geometry.dilation
