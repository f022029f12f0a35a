"""Convolutions with large kernels as modules: those of torch, planned."""

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from convattn.errors import ArgumentError, must_be
from convattn.functional.large_kernel import (
    ConvolutionPlan,
    convolve_large,
    plan_convolution,
    sizes_of,
)

_Self = TypeVar("_Self", bound="LargeKernelConvolution")


class LargeKernelConvolution(_ConvNd):
    """What the three convolutions share."""

    dims: ClassVar[int]

    @classmethod
    def of(cls: type[_Self], convolution: nn.Module) -> _Self:
        """Makes the layer of a convolution of torch; both hold the same parameters."""
        made = cls.__new__(cls)
        for (
            name,
            value,
        ) in (
            convolution.__dict__.items()
        ):  # parameters, hooks: the same ones, each in a table of its own
            made.__dict__[name] = copy.copy(value) if isinstance(value, dict) else value
        return made

    def plan(
        self, shape: Sequence[int], dtype: torch.dtype | None = None, *, channels_last: bool = False
    ) -> ConvolutionPlan:
        """Returns how a call on a CPU is computed: the result, the gradient of the images and that of the weight.

        Args:
            shape: Shape of the images, (batch, in_channels, *spatial).
            dtype: Their dtype; None means the weight's.
            channels_last: Whether they have channels innermost in memory.

        Returns:
            A path for each of the three, with its reason.

        Raises:
            ArgumentError: The shape is not one that the layer takes, or the dtype is neither float32 nor float64.

        Example:
            >>> plan = LargeKernelConv2d(64, 64, 31, padding=15, groups=64).plan((1, 64, 56, 56))
            >>> plan.weight_gradient.path
            'fft'
        """
        kind = dtype or self.weight.dtype
        if kind not in (torch.float32, torch.float64):
            raise ArgumentError(
                must_be("dtype", "torch.float32 or torch.float64: torch computes others", kind)
            )
        sizes = tuple(shape)
        if len(sizes) != self.dims + 2 or sizes[1] != self.in_channels or min(sizes) < 1:
            expected = f"{self.dims + 2} positive numbers (batch, {self.in_channels}, ...)"
            raise ArgumentError(must_be("shape", expected, sizes))
        x = torch.empty(sizes, dtype=kind, device="meta")
        if channels_last and self.dims > 1:
            x = x.to(
                memory_format=torch.channels_last if self.dims == 2 else torch.channels_last_3d
            )
        padded, geometry = self._padded(x)
        planned = sizes_of(padded, self.weight, geometry, self.groups)
        if min(planned.dense) < 1:
            raise ArgumentError(must_be("shape", "large enough for the kernel", sizes))
        return plan_convolution(planned)

    def _padded(self, x: Tensor) -> tuple[Tensor, tuple[tuple[int, ...], ...]]:
        """Pads images, but not with zeros alike on both sides; returns stride, padding and dilation, too."""
        both = self._reversed_padding_repeated_twice
        padding = tuple(both[2 * axis] for axis in reversed(range(self.dims)))
        if self.padding_mode != "zeros" or both[::2] != both[1::2]:
            x = functional.pad(
                x, both, mode="constant" if self.padding_mode == "zeros" else self.padding_mode
            )
            padding = (0,) * self.dims
        return x, (self.stride, padding, self.dilation)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002 - as torch has it
        single = input.ndim == self.dims + 1
        fits = isinstance(input, Tensor) and input.ndim == self.dims + 1 + (not single)
        if not fits or input.shape[-1 - self.dims] != self.in_channels:
            return cast(Any, super())._conv_forward(input, weight, bias)  # which says what is wrong
        x, geometry = self._padded(input[None] if single else input)
        y = convolve_large(x, weight, bias, geometry, self.groups)
        return y[0] if single else y


@final
class LargeKernelConv1d(LargeKernelConvolution, nn.Conv1d):
    """`nn.Conv1d` for large kernels: the same arguments, parameters and results, computed by a plan.

    On a CPU in float32 and float64 the result and each gradient are computed in the layout of torch that is faster, in
    blocks by transforms ("overlap-add"), or by one transform ("fft"); `plan` says how. Elsewhere, and in compiled
    graphs, it is torch's convolution. What is not finite reaches what it reaches in torch's. The error of a transform
    is a share of the largest number of a channel: beside it, small results keep fewer digits than in torch's.

    Example:
        >>> layer = LargeKernelConv1d(3, 6, 1025, padding="same", groups=3)
        >>> layer(torch.zeros(2, 3, 4000)).shape
        torch.Size([2, 6, 4000])
    """

    dims = 1


@final
class LargeKernelConv2d(LargeKernelConvolution, nn.Conv2d):
    """`nn.Conv2d` for large kernels: the same arguments, parameters and results, computed by a plan.

    See `LargeKernelConv1d`.

    Example:
        >>> layer = LargeKernelConv2d(8, 8, 31, padding=15, groups=8)
        >>> layer(torch.zeros(2, 8, 56, 56)).shape
        torch.Size([2, 8, 56, 56])
    """

    dims = 2


@final
class LargeKernelConv3d(LargeKernelConvolution, nn.Conv3d):
    """`nn.Conv3d` for large kernels: the same arguments, parameters and results, computed by a plan.

    See `LargeKernelConv1d`.

    Example:
        >>> layer = LargeKernelConv3d(4, 4, 7, padding=3, groups=4)
        >>> layer(torch.zeros(1, 4, 8, 12, 12)).shape
        torch.Size([1, 4, 8, 12, 12])
    """

    dims = 3
