"""The common part of the attention network and its convolutional control: everything but the mixer."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ArgumentError, ShapeError, must_be
from convattn.grid import whole_number
from convattn.layers import RelativeAttention
from convattn.layers.block import MixingBlock
from convattn.models.flops import FlopCount, matmul_flops
from convattn.models.hub_model import HubModel


class MixingNet(HubModel, ABC):
    """Patches to pixels, post-normalised blocks, mean over pixels, class scores.

    ``images → p x p space-to-depth → Linear to width → blocks → mean over pixels → Linear to classes``. Weights of
    linear maps and convolutions start from N(0, initializer_range²), biases from 0; encodings draw their own.
    """

    def __init__(  # noqa: PLR0913 - the sizes that both networks have
        self,
        mixers: Sequence[nn.Module],
        *,
        num_classes: int,
        in_channels: int,
        width: int,
        ffn: int,
        patch: int,
        dropout: float,
        initializer_range: float,
        dense: bool = True,
    ) -> None:
        """Builds the network around its mixers, one per block; each takes and returns (batch, width, rows, cols)."""
        super().__init__()
        if not (math.isfinite(initializer_range) and initializer_range > 0):
            raise ArgumentError(must_be("initializer_range", "a positive finite number", initializer_range))
        sizes = {"num_classes": num_classes, "in_channels": in_channels, "width": width, "patch": patch}
        for name, size in sizes.items():
            whole_number(name, size)
        self.in_channels, self.num_classes = in_channels, num_classes
        self.width, self.ffn, self.patch, self.initializer_range = width, ffn, patch, initializer_range
        self.patches = nn.PixelUnshuffle(patch)
        self.embed = nn.Linear(in_channels * patch**2, width)
        self.blocks = nn.ModuleList(
            MixingBlock(mixer, width, ffn=ffn, dense=dense, dropout=dropout) for mixer in mixers
        )
        self.head = nn.Linear(width, num_classes)
        self.apply(partial(_draw_weights, std=initializer_range))

    def forward(self, images: Float[Tensor, "batch channels rows cols"]) -> Float[Tensor, "batch classes"]:
        """Scores the classes.

        Args:
            images: Normalised images; rows and columns divisible by the patch.

        Returns:
            One score (logit) per class.

        Raises:
            ShapeError: The images have other channels, or are not divisible into patches.
        """
        if images.shape[1] != self.in_channels or any(size % self.patch for size in images.shape[2:]):
            raise ShapeError(
                f"images must be of shape (batch, {self.in_channels}, rows, cols) with rows and cols divisible by "
                f"patch={self.patch}, but are {tuple(images.shape)}"
            )
        pixels = rearrange(self.patches(images), "batch channels rows cols -> batch rows cols channels")
        features = rearrange(self.embed(pixels), "batch rows cols width -> batch width rows cols")
        for block in self.blocks:
            features = block(features)
        return self.head(reduce(features, "batch width rows cols -> batch width", "mean"))

    @abstractmethod
    def flops(self, image_size: int = 32) -> FlopCount:
        """Counts the floating-point operations for one image, in closed form."""

    def _shared_flops(self, pixels: int) -> int:
        """Counts all linear maps outside the mixers, on so many pixels after space-to-depth."""
        dense = sum(isinstance(block.dense, nn.Linear) for block in self.blocks)
        maps = dense * matmul_flops(pixels, self.width, self.width)
        maps += 2 * len(self.blocks) * matmul_flops(pixels, self.width, self.ffn)
        embed = matmul_flops(pixels, self.embed.in_features, self.width)
        return embed + maps + matmul_flops(1, self.width, self.num_classes)


def _draw_weights(module: nn.Module, std: float) -> None:
    """Draws the first values of one module's own weights."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        weights = [module.weight]
    elif isinstance(module, RelativeAttention):
        weights = list(module.values.parameters())
    else:
        return
    for weight in weights:
        nn.init.normal_(weight, std=std)
    if module.bias is not None:
        nn.init.zeros_(module.bias)
