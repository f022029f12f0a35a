"""The paper's network: self-attention alone, no convolution."""

from typing import cast, final

from torch import nn

from convattn.encodings import Encoding, create_encoding
from convattn.errors import ArgumentError, ConversionError
from convattn.grid import whole_number
from convattn.layers import Content, RelativeAttention2d, fuse
from convattn.layers.block import MixingBlock
from convattn.models.flops import FlopCount, matmul_flops
from convattn.models.mixing_net import MixingNet

__all__ = ["AttentionNet"]


@final
class AttentionNet(MixingNet):
    """The attention-only image classifier of the paper.

    Every block mixes with multi-head attention of merged heads (each head mixes all channels, then one linear map of
    the heads' results together). Sizes at the defaults, with the encoding "quadratic": 12,086,844 parameters;
    "learned_axial": 12,278,682; "learned_axial" with content: 29,484,282.

    With content, queries and keys are as wide as the network, with biases; the encoding "learned_axial" then has no
    vectors of its own per head, and its tables, concatenated, are used as they are (the paper's "learned + content").

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, §4 and appendix, and the authors' code for what the text leaves open.

    Attributes:
        patches: Space-to-depth, invertible by `nn.PixelShuffle`.
        embed: Linear map of a patch to the network's width.
        blocks: The blocks, first to last; each block's `mixer` is a `RelativeAttention2d`.
        head: Linear map of the mean pixel to class scores.

    Example:
        >>> import torch
        >>> network = AttentionNet("quadratic", in_channels=1, width=12, depth=2, heads=4, ffn=16)
        >>> network(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 10])
        >>> network.flops(image_size=8).mixing
        49152
    """

    def __init__(  # noqa: PLR0913 - the sizes of the paper's network, each with a default
        self,
        encoding: str = "quadratic",
        *,
        content: bool = False,
        num_classes: int = 10,
        in_channels: int = 3,
        width: int = 400,
        depth: int = 6,
        heads: int = 9,
        ffn: int = 512,
        patch: int = 2,
        dropout: float = 0.1,
        image_size: int = 32,
        initializer_range: float = 0.02,
        dense: bool = True,
    ) -> None:
        """Builds the network and draws its weights.

        Args:
            encoding: Name of an encoding.
            content: Whether attention depends on the input's content as well.
            num_classes: Number of classes, ≥ 1.
            in_channels: Channels of the images, ≥ 1.
            width: Channels of the feature maps, ≥ 1; even for "learned_axial" with content.
            depth: Number of blocks, ≥ 1.
            heads: Number of heads in each block, ≥ 1.
            ffn: Width of the feed-forward networks' hidden layers, ≥ 1.
            patch: Side of a patch in pixels, ≥ 1.
            dropout: Probability in [0, 1) with which attention weights and values of a branch are dropped in training.
            image_size: Largest rows or columns of an image. Encodings that are tables hold the displacements of that
                size; the others take images of any size.
            initializer_range: Standard deviation of the weights at the start, > 0. The paper's 0.02 suits its width;
                a branch keeps its gain at other widths with 0.02·√(400/width).
            dense: Whether a linear map follows the attention in each block; without it the network is of the form that
                `fused` returns.

        Raises:
            ArgumentError: A size is out of range.
            UnknownNameError: There is no such encoding.
        """
        for name, size in {"width": width, "depth": depth, "patch": patch, "image_size": image_size}.items():
            whole_number(name, size)
        if content and encoding == "learned_axial" and width % 2:
            raise ArgumentError(f"width must be even for learned_axial with content, but is {width}")
        mixers = [
            RelativeAttention2d(
                width,
                width,
                heads,
                _create_encoding(encoding, heads, width, extent=-(-image_size // patch), content=content),
                content=_content(width, shared_position=encoding == "learned_axial") if content else False,
                dropout=dropout,
            )
            for _ in range(depth)
        ]
        super().__init__(
            mixers,
            num_classes=num_classes,
            in_channels=in_channels,
            width=width,
            ffn=ffn,
            patch=patch,
            dropout=dropout,
            initializer_range=initializer_range,
            dense=dense,
        )
        self.heads, self.content = heads, content
        self.has_position_scores = content and mixers[0].encoding.feature_width > 0

    def fused(self) -> "AttentionNet":
        """Merges the linear map after the attention of each block into the attention, for inference.

        Scores of classes stay the same but for rounding; the network has `depth · (width² + width)` parameters fewer.
        It is saved and loaded as any other.

        Returns:
            A new network, in the same mode; this one is not changed.

        Raises:
            ConversionError: The network has no such maps, or a block cannot be merged: see `convattn.fuse`.

        Example:
            >>> import torch
            >>> network = AttentionNet("quadratic", width=12, depth=2, heads=4, ffn=16)
            >>> network.fused()(torch.zeros(3, 3, 8, 8)).shape
            torch.Size([3, 10])
        """
        made = self._copy(dense=False)
        for number, block in enumerate(made.blocks):
            assert isinstance(block, MixingBlock)
            if isinstance(block.dense, nn.Identity):
                raise ConversionError(f"cannot fuse block {number}: no linear map follows its attention")
            block.mixer, block.dense = fuse(cast(RelativeAttention2d, block.mixer), block.dense), nn.Identity()
        return made

    def flops(self, image_size: int = 32) -> FlopCount:
        """Counts the floating-point operations for one image, in closed form.

        Args:
            image_size: Rows and columns of the image, divisible by the patch.

        Returns:
            Operations of the linear maps, the mixing and the scores; mixing and scores with N x N weights.
        """
        pixels, depth = (image_size // self.patch) ** 2, len(self.blocks)
        all_heads = self.heads * self.width
        maps = depth * matmul_flops(pixels, all_heads, self.width)
        pairs = depth * matmul_flops(pixels, pixels, all_heads)
        linear = self._shared_flops(pixels) + maps
        if not self.content:
            return FlopCount(linear, mixing=pairs)
        positions = pairs if self.has_position_scores else 0
        return FlopCount(linear + 2 * maps, mixing=pairs, content_scores=pairs, position_scores=positions)


def _create_encoding(name: str, heads: int, width: int, *, extent: int, content: bool) -> Encoding:
    """Builds a fresh encoding for one block."""
    if name == "learned_axial":
        table_width = width // 2 if content else width
        return create_encoding(name, heads, 2, extent=extent, width=table_width, head_vectors=not content)
    if name == "learned_table":
        return create_encoding(name, heads, 2, extent=extent)
    return create_encoding(name, heads, 2)


def _content(width: int, *, shared_position: bool) -> Content:
    """Chooses the content terms of the paper's network."""
    return Content(
        key_width=width, project_position=not shared_position, content_bias=False, query_bias=True, key_bias=True
    )
