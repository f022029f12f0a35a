"""ResNet-18 for small images: the paper's convolutional baseline."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from convattn.errors import ShapeError
from convattn.models.classifier import ImageClassifier, require_whole

_STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))
"""Width of each stage, as a multiple of the first one's, and stride of its first block."""


@final
class ResNet(ImageClassifier):
    """A residual network of basic blocks in four stages, with a 3 x 3 stem and no pooling before the end.

    Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016; the variant for 32 x 32
    images.

    Attributes:
        stem: 3 x 3 convolution to the width of the first stage, and its normalisation.
        stages: Basic blocks, first to last.
        head: Linear map of the mean pixel to class scores.
    """

    def __init__(
        self,
        blocks_per_stage: int = 2,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: int = 64,
    ) -> None:
        """Builds the network, initialised as PyTorch does.

        Args:
            blocks_per_stage: Basic blocks in each of the four stages, ≥ 1; 2 makes ResNet-18.
            num_classes: Number of classes, ≥ 1.
            in_channels: Channels of the images, ≥ 1.
            width: Channels of the first stage, ≥ 1; each later stage has twice as many as the one before. ResNet-18 has
                64.

        Raises:
            ArgumentError: A size is out of range.
        """
        super().__init__()
        require_whole(
            blocks_per_stage=blocks_per_stage,
            num_classes=num_classes,
            in_channels=in_channels,
            width=width,
        )
        self.in_channels = in_channels
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.stages = nn.Sequential()
        channels = width
        for multiple, stride in _STAGES:
            for step in [stride] + [1] * (blocks_per_stage - 1):
                self.stages.append(_BasicBlock(channels, multiple * width, step))
                channels = multiple * width
        self.head = nn.Linear(channels, num_classes)

    def forward(
        self, images: Float[Tensor, "batch channels rows cols"]
    ) -> Float[Tensor, "batch classes"]:
        """Scores the classes.

        Args:
            images: Normalised images.

        Returns:
            One score (logit) per class.

        Raises:
            ShapeError: The images have other channels.
        """
        if images.ndim != 4 or images.shape[1] != self.in_channels:
            raise ShapeError(
                f"images must be (batch, {self.in_channels}, rows, cols), but are {tuple(images.shape)}"
            )
        features = self.stages(F.relu(self.stem(images)))
        return self.head(features.mean(dim=(2, 3)))


class _BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Builds the block; if the shapes differ, the shortcut is a 1 x 1 convolution with the stride."""
        super().__init__()
        self.stride = stride
        self.first = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(
        self, x: Float[Tensor, "batch channels rows cols"]
    ) -> Float[Tensor, "batch outputs out_rows out_cols"]:
        """Adds the outputs of the convolutions and of the shortcut."""
        branch = F.relu(self.first_norm(self.first(x)))
        branch = self.second_norm(self.second(branch))
        # torch's strided 1 x 1 convolutions may err: decision 0013
        shortcut = self.shortcut(x[:, :, :: self.stride, :: self.stride])
        return F.relu(branch + shortcut)


def resnet18(num_classes: int = 10, *, in_channels: int = 3) -> ResNet:
    """Builds ResNet-18 for small images; with ten classes and three channels it has 11,173,962 parameters.

    Args:
        num_classes: Number of classes, ≥ 1.
        in_channels: Channels of the images, ≥ 1.

    Returns:
        The network, freshly initialised.

    Raises:
        ArgumentError: A size is out of range.

    Example:
        >>> sum(parameter.numel() for parameter in resnet18().parameters())
        11173962
    """
    return ResNet(2, num_classes=num_classes, in_channels=in_channels)
