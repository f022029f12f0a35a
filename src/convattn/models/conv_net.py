"""The control: the paper's network with plain convolutions in place of attention."""

from typing import final

from torch import nn

from convattn.errors import ArgumentError
from convattn.grid import whole_number
from convattn.models.flops import FlopCount, matmul_flops
from convattn.models.mixing_net import MixingNet

__all__ = ["ConvNet"]


@final
class ConvNet(MixingNet):
    """The same network as `AttentionNet`, with K x K convolutions where that one attends.

    It answers what the paper leaves open: how well do the same blocks do when their heads are fixed on a K x K grid?
    At the defaults it has 12,086,682 parameters: 12,086,844 less the nine centres and sharpnesses (27 numbers) of
    each of six blocks.

    Attributes:
        patches: Space-to-depth, invertible by `nn.PixelShuffle`.
        embed: Linear map of a patch to the network's width.
        blocks: The blocks, first to last; each block's `mixer` is an `nn.Conv2d` that keeps the size, with zero
            padding.
        head: Linear map of the mean pixel to class scores.

    Example:
        >>> import torch
        >>> network = ConvNet(kernel_size=3, in_channels=1, width=12, depth=2, ffn=16)
        >>> network(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 10])
    """

    def __init__(  # noqa: PLR0913 - the sizes of AttentionNet, each with a default
        self,
        kernel_size: int = 3,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: int = 400,
        depth: int = 6,
        ffn: int = 512,
        patch: int = 2,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
    ) -> None:
        """Builds the network and draws its weights.

        Args:
            kernel_size: Rows and columns of the kernels, odd and ≥ 1.
            num_classes: Number of classes, ≥ 1.
            in_channels: Channels of the images, ≥ 1.
            width: Channels of the feature maps, ≥ 1.
            depth: Number of blocks, ≥ 1.
            ffn: Width of the feed-forward networks' hidden layers, ≥ 1.
            patch: Side of a patch in pixels, ≥ 1.
            dropout: Probability in [0, 1) with which a value of a branch is dropped in training.
            initializer_range: Standard deviation of the weights at the start, > 0.

        Raises:
            ArgumentError: A size is out of range, or the kernel has no middle.
        """
        for name, size in {"kernel_size": kernel_size, "width": width, "depth": depth}.items():
            whole_number(name, size)
        if kernel_size % 2 == 0:
            raise ArgumentError(f"kernel_size must be odd, so that the kernel has a middle, but is {kernel_size}")
        super().__init__(
            [nn.Conv2d(width, width, kernel_size, padding=kernel_size // 2) for _ in range(depth)],
            num_classes=num_classes,
            in_channels=in_channels,
            width=width,
            ffn=ffn,
            patch=patch,
            dropout=dropout,
            initializer_range=initializer_range,
        )
        self.kernel_size = kernel_size

    def flops(self, image_size: int = 32) -> FlopCount:
        """Counts the floating-point operations for one image, in closed form.

        Args:
            image_size: Rows and columns of the image, divisible by the patch.

        Returns:
            Operations of the linear maps and the convolutions, taps on the padding included.
        """
        pixels = (image_size // self.patch) ** 2
        taps = self.kernel_size**2 * self.width
        return FlopCount(self._shared_flops(pixels) + len(self.blocks) * matmul_flops(pixels, taps, self.width))
