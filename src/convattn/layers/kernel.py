"""The attributes of a convolution, for a layer that takes its place."""

import math
from abc import ABC, abstractmethod

from torch import Tensor, nn

from convattn.grid import Geometry


class HasKernel(nn.Module, ABC):
    """A layer with the attributes that other code reads from a convolution: its weight, its window and its steps.

    The weight needs one head per tap of the window.
    """

    _geometry: Geometry

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
