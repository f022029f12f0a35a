"""The control: the paper's network with plain convolutions in place of attention."""

import copy
from typing import Any, final

import torch
from torch import nn

from convattn.errors import ArgumentError, ConversionError, UnknownNameError
from convattn.grid import PADDING_MODES, whole_number
from convattn.layers.block import MixingBlock
from convattn.models.flops import FlopCount, matmul_flops
from convattn.models.mixing_net import MixingNet


@final
class ConvNet(MixingNet):
    """The same network as `AttentionNet`, with K x K convolutions in place of attention.

    It answers what the paper leaves open: how well do the same blocks do when their heads are fixed on a K x K grid?
    At the defaults it has 12,086,682 parameters: 12,086,844 less the nine centres and sharpnesses (27 numbers) of
    each of six blocks.

    Attributes:
        patches: Space-to-depth, invertible by `nn.PixelShuffle`.
        embed: Linear map of a patch to the network's width.
        blocks: The blocks, first to last; each block's `mixer` is an `nn.Conv2d` that keeps the size.
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
        dense: bool = True,
        padding_mode: str = "zeros",
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
            dense: Whether a linear map follows the convolution in each block.
            padding_mode: How images go on outside: "zeros", "reflect", "replicate" or "circular".

        Raises:
            ArgumentError: A size is out of range, or the kernel has no middle.
            UnknownNameError: The padding mode is unknown.
        """
        for name, size in {"kernel_size": kernel_size, "width": width, "depth": depth}.items():
            whole_number(name, size)
        if kernel_size % 2 == 0:
            raise ArgumentError(f"kernel_size must be odd, so that the kernel has a middle, but is {kernel_size}")
        if padding_mode not in PADDING_MODES:
            raise UnknownNameError("padding_mode", padding_mode, PADDING_MODES)
        options: dict[str, Any] = {"padding": kernel_size // 2, "padding_mode": padding_mode}
        super().__init__(
            [nn.Conv2d(width, width, kernel_size, **options) for _ in range(depth)],
            num_classes=num_classes,
            in_channels=in_channels,
            width=width,
            ffn=ffn,
            patch=patch,
            dropout=dropout,
            initializer_range=initializer_range,
            dense=dense,
        )
        self.kernel_size = kernel_size

    @classmethod
    def of(cls, network: MixingNet) -> "ConvNet":
        """Makes a `ConvNet` from a network like it whose blocks hold convolutions, as `network_to_conv` does.

        Kernels are padded with zeros to the size of the largest, which does not change the result. The result is saved
        and loaded as any other.

        Args:
            network: An `AttentionNet` or `ConvNet`, each of whose blocks mixes with an `nn.Conv2d` that keeps the size;
                it is not changed.

        Returns:
            A new network that computes the same, in the same mode, dtype and device.

        Raises:
            ConversionError: A block has something else in place of the convolution, or the blocks are not alike.

        Example:
            >>> ConvNet.of(ConvNet(kernel_size=5, width=8, depth=1, ffn=8)).kernel_size
            5
        """
        source = copy.deepcopy(network)
        mixers = [_plain_mixer(number, block) for number, block in enumerate(source.blocks)]
        modes = sorted({mixer.padding_mode for mixer in mixers})
        dense = {isinstance(block.dense, nn.Linear) for block in source.blocks}
        if len(modes) > 1 or len(dense) > 1:
            differing = f"padding modes {' and '.join(modes)}" if len(modes) > 1 else "linear maps in some blocks only"
            raise ConversionError(f"cannot make a ConvNet: the blocks have {differing}, but must be alike")
        size = max(max(mixer.kernel_size) for mixer in mixers)
        block = source.blocks[0]
        assert isinstance(block, MixingBlock)
        with torch.device("meta"):  # all tensors come from the network
            made = cls(
                size,
                num_classes=network.num_classes,
                in_channels=network.in_channels,
                width=network.width,
                depth=len(mixers),
                ffn=network.ffn,
                patch=network.patch,
                dropout=block.dropout.p,
                initializer_range=network.initializer_range,
                dense=dense.pop(),
                padding_mode=modes[0],
            )
        for block, mixer in zip(source.blocks, mixers, strict=True):
            block.mixer = _enlarge(mixer, size)
        made.patches, made.embed, made.blocks, made.head = source.patches, source.embed, source.blocks, source.head
        return made.train(network.training)

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


def _plain_mixer(number: int, block: nn.Module) -> nn.Conv2d:
    """Returns the convolution of a block, which must be one that a `ConvNet` has."""
    assert isinstance(block, MixingBlock)
    mixer, start = block.mixer, f"cannot make a ConvNet: block {number} mixes with"
    if type(mixer) is not nn.Conv2d:
        raise ConversionError(f"{start} {type(mixer).__name__}, not Conv2d")
    halves = tuple(k // 2 for k in mixer.kernel_size)
    plain = (mixer.stride, mixer.dilation, mixer.groups) == ((1, 1), (1, 1), 1) and mixer.bias is not None
    if not plain or mixer.padding != halves or any(k % 2 == 0 for k in mixer.kernel_size):
        raise ConversionError(f"{start} {mixer}, but must keep the size and have a bias and an odd kernel")
    return mixer


def _enlarge(conv: nn.Conv2d, size: int) -> nn.Conv2d:
    """Pads the kernel of a convolution with zeros; the result is the same."""
    margins = [(size - k) // 2 for k in reversed(conv.kernel_size) for _ in range(2)]
    with torch.device("meta"):
        made = nn.Conv2d(conv.in_channels, conv.out_channels, size, padding=size // 2, padding_mode=conv.padding_mode)
    with torch.no_grad():
        weight = nn.functional.pad(conv.weight, margins).clone()
    made.weight = nn.Parameter(weight, requires_grad=conv.weight.requires_grad)
    assert isinstance(conv.bias, nn.Parameter)
    made.bias = conv.bias
    return made.train(conv.training)
