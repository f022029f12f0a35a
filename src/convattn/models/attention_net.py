"""The paper's network of self-attention alone, and its control with plain convolutions in place of attention."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings import ENCODINGS, create_encoding
from convattn.encodings.quadratic import grid_centres
from convattn.encodings.start import start_like_table
from convattn.errors import ShapeError, require, require_name
from convattn.grid import PADDING_MODES, axis_lists
from convattn.layers import Content, RelativeAttention, RelativeAttention2d
from convattn.models.block import MixingBlock
from convattn.models.classifier import ImageClassifier, require_whole


class MixingNet(ImageClassifier):
    """Patches to pixels, post-normalised blocks, mean over pixels, class scores.

    ``images → p x p space-to-depth → Linear to width → blocks → mean over pixels → Linear to classes``. Weights of
    linear maps and convolutions start from N(0, initializer_range²), biases from 0; encodings draw their own.
    """

    def __init__(
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
    ) -> None:
        """Builds the network around its mixers, one per block; each takes and returns (batch, width, rows, cols)."""
        super().__init__()
        require(0 <= dropout < 1, "dropout", "a probability in [0, 1)", dropout)
        is_positive = 0 < initializer_range < math.inf
        require(is_positive, "initializer_range", "a positive finite number", initializer_range)
        require_whole(
            num_classes=num_classes, in_channels=in_channels, width=width, ffn=ffn, patch=patch
        )
        self.in_channels = in_channels
        self.width = width
        self.patch = patch
        self.patches = nn.PixelUnshuffle(patch)
        self.embed = nn.Linear(in_channels * patch**2, width)
        self.blocks = nn.ModuleList()
        for mixer in mixers:
            self.blocks.append(MixingBlock(mixer, width, ffn=ffn, dropout=dropout))
        self.head = nn.Linear(width, num_classes)
        self.initializer_range = initializer_range
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        """Draws the first values of one module's own weights."""
        if isinstance(module, nn.Linear | nn.Conv2d):
            weights = [module.weight]
        elif isinstance(module, RelativeAttention):
            weights = list(module.values.parameters())
        else:
            return
        for weight in weights:
            nn.init.normal_(weight, std=self.initializer_range)
        if module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(
        self, images: Float[Tensor, "batch channels rows cols"]
    ) -> Float[Tensor, "batch classes"]:
        """Scores the classes.

        Args:
            images: Normalised images; rows and columns divisible by the patch.

        Returns:
            One score (logit) per class.

        Raises:
            ShapeError: The images have other channels, or are not divisible into patches.
        """
        *_, channels, rows, cols = (0, 0, 0, *images.shape)
        divisible = rows % self.patch == cols % self.patch == 0
        if images.ndim != 4 or channels != self.in_channels or not divisible:
            raise ShapeError(
                f"images must be of shape (batch, {self.in_channels}, rows, cols) with rows and cols divisible by "
                f"patch={self.patch}, but are {tuple(images.shape)}"
            )
        pixels = rearrange(
            self.patches(images), "batch channels rows cols -> batch rows cols channels"
        )
        features = rearrange(self.embed(pixels), "batch rows cols width -> batch width rows cols")
        for block in self.blocks:
            features = block(features)
        return self.head(reduce(features, "batch width rows cols -> batch width", "mean"))


_CENTRES = ("grid", "normal")
_POSITION_STARTS = ("network", "table")


@final
class AttentionNet(MixingNet):
    """The attention-only image classifier of the paper.

    Every block has multi-head attention with merged heads: each head mixes all channels, and one linear map takes the
    results of all heads. Sizes at the defaults, with the encoding "quadratic": 12,086,844 parameters; "learned_axial":
    12,278,682; "learned_axial" with content: 29,484,282.

    With content, queries and keys are as wide as the network, with biases; the encoding "learned_axial" then has no
    vectors of its own per head, and its tables, concatenated, are used as they are (the paper's "learned + content").

    With `gated`, each head mixes two distributions instead of adding two scores: one from the encoding, with its own
    vectors per head, and one from content, q·k/√width. Queries and keys are as wide as the network, as in the network
    with content and not width/heads as in ConViT, so that only the gate differs. As in ConViT, content scores do not
    depend on position. Queries have a bias; keys have none, because the softmax cancels it. The gate of a head starts
    at 1, which gives position a share of 0.73.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, §4 and appendix, and the authors' code for what the text leaves open;
    the gate: d'Ascoli et al. 2021 (ConViT), eq. 6.

    Attributes:
        patches: Space-to-depth, invertible by `nn.PixelShuffle`.
        embed: Linear map of a patch to the network's width.
        blocks: The blocks, first to last; each block's `mixer` is a `RelativeAttention2d`, with a gate if `gated`.
        head: Linear map of the mean pixel to class scores.
        heads: Number of heads of each block.

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
        heads: int | Sequence[int] = 9,
        ffn: int = 512,
        patch: int = 2,
        dropout: float = 0.1,
        image_size: int = 32,
        initializer_range: float = 0.02,
        centres: str = "normal",
        gated: bool = False,
        position_start: str = "network",
        encoding_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Builds the network and draws its weights.

        Args:
            encoding: Name of an encoding.
            content: Whether attention also depends on the content of the input.
            num_classes: Number of classes, ≥ 1.
            in_channels: Channels of the images, ≥ 1.
            width: Channels of the feature maps, ≥ 1; even for "learned_axial" with content.
            depth: Number of blocks, ≥ 1.
            heads: Number of heads in each block, ≥ 1, or one number per block.
            ffn: Width of the feed-forward networks' hidden layers, ≥ 1.
            patch: Side of a patch in pixels, ≥ 1.
            dropout: Probability in [0, 1) with which attention weights and values of a branch are dropped in training.
            image_size: Largest rows or columns of an image. Encodings that are tables hold the displacements of that
                size; the others take images of any size.
            initializer_range: Standard deviation of the weights at the start, > 0. The paper's 0.02 suits its width;
                a branch keeps its gain at other widths with 0.02·√(400/width).
            centres: Where heads that have centres, as those of "quadratic" and "linear_distance", start: "normal",
                drawn from N(0, 2²), or "grid", the K x K whole-pixel shifts around the query, with K² heads and K odd.
                Sharpness is drawn either way.
            gated: Whether a gate per head mixes the distributions of content and position; needs content.
            position_start: How "distance", "axial_distance", "sinusoidal" and "learned_table" start. "network": with
                linear maps drawn like all others. "table": attending to as many pixels as "learned_axial" does.
            encoding_options: Further arguments of the encoding, such as {"hidden": 32} of "distance".

        Raises:
            ArgumentError: A size is out of range, or an argument does not fit another.
            UnknownNameError: There is no such encoding, or no such start.
        """
        require_whole(width=width, depth=depth, patch=patch, image_size=image_size)
        require_name("centres", centres, _CENTRES)
        require_name("position_start", position_start, _POSITION_STARTS)
        are_named = isinstance(encoding_options, Mapping | None)
        require(are_named, "encoding_options", "arguments by name, as a dict", encoding_options)
        require(isinstance(content, bool), "content", "True or False", content)
        mixes = "True with gated=True, which mixes content and position"
        require(content or not gated, "content", mixes, content)
        only_features = encoding == "learned_axial" and content and not gated
        if only_features:
            require(width % 2 == 0, "width", "even for learned_axial with content", width)
        extent = -(-image_size // patch)
        options: dict[str, Any] = {}
        if encoding in ("learned_axial", "learned_table"):
            options["extent"] = extent
        if encoding == "learned_axial":
            options["width"] = width // 2 if only_features else width
            options["head_vectors"] = not only_features
        options |= encoding_options or {}
        layer_options: dict[str, Any] = {"dropout": dropout}
        if content:
            # with a gate, content alone, which that mixes with position
            position = False if gated else None
            layer_options["content"] = Content(
                key_width=width,
                position=position,
                project_position=not only_features,
                content_bias=False,
                query_bias=True,
                key_bias=not gated,
            )
        if gated:
            layer_options["gate"] = "sigmoid"
        if centres == "grid":
            kind = ENCODINGS.get(encoding)
            expected = f'"normal" with encoding {encoding!r}, which has no centres'
            require(kind and kind.centre_argument == "centres", "centres", expected, centres)
            expected = 'without "centres", which centres="grid" gives'
            require("centres" not in options, "encoding_options", expected, encoding_options)
        block_heads = axis_lists("heads", heads, depth, least=1)
        mixers = []
        for number in block_heads:
            grid = {}
            if centres == "grid":
                grid["centres"] = grid_centres(number)
            positions = create_encoding(encoding, number, 2, **grid, **options)
            mixers.append(
                RelativeAttention2d(
                    width, width, num_heads=number, encoding=positions, **layer_options
                )
            )
        super().__init__(
            mixers,
            num_classes=num_classes,
            in_channels=in_channels,
            width=width,
            ffn=ffn,
            patch=patch,
            dropout=dropout,
            initializer_range=initializer_range,
        )
        if position_start == "table":
            for mixer in mixers:
                start_like_table(mixer.encoding, size=extent, width=width)
        self.heads = block_heads
        self.content = content


@final
class ConvNet(MixingNet):
    """The same network as `AttentionNet`, with K x K convolutions in place of attention.

    The control of the paper's comparison: the same blocks with their heads fixed on a K x K grid.
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
            padding_mode: How images are continued at the border: "zeros", "reflect", "replicate" or "circular".

        Raises:
            ArgumentError: A size is out of range, or the kernel has no middle.
            UnknownNameError: The padding mode is unknown.
        """
        require_whole(kernel_size=kernel_size, width=width, depth=depth)
        expected = "odd, so that the kernel has a middle"
        require(kernel_size % 2, "kernel_size", expected, kernel_size)
        require_name("padding_mode", padding_mode, PADDING_MODES)
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
        )
