"""The paper's network of self-attention alone, and its control with plain convolutions in place of attention."""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast, final

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings import (
    AxialDistance,
    Distance,
    Encoding,
    LearnedTable,
    Sinusoidal,
    create_encoding,
)
from convattn.encodings.quadratic import grid_centres
from convattn.encodings.start import start_like_table
from convattn.errors import ArgumentError, ConversionError, ShapeError, UnknownNameError, must_be
from convattn.grid import PADDING_MODES, axis_lists, whole_number
from convattn.layers import (
    Content,
    RelativeAttention,
    RelativeAttention2d,
)
from convattn.layers.block import MixingBlock
from convattn.models.classifier import ImageClassifier


class MixingNet(ImageClassifier):
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
            raise ArgumentError(
                must_be("initializer_range", "a positive finite number", initializer_range)
            )
        sizes = {
            "num_classes": num_classes,
            "in_channels": in_channels,
            "width": width,
            "patch": patch,
        }
        for name, size in sizes.items():
            whole_number(name, size)
        self.in_channels, self.num_classes = in_channels, num_classes
        self.width, self.ffn, self.patch, self.initializer_range = (
            width,
            ffn,
            patch,
            initializer_range,
        )
        self.patches = nn.PixelUnshuffle(patch)
        self.embed = nn.Linear(in_channels * patch**2, width)
        self.blocks = nn.ModuleList(
            MixingBlock(mixer, width, ffn=ffn, dense=dense, dropout=dropout) for mixer in mixers
        )
        self.head = nn.Linear(width, num_classes)
        self.apply(partial(_draw_weights, std=initializer_range))

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
        if images.shape[1] != self.in_channels or any(
            size % self.patch for size in images.shape[2:]
        ):
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
        dense: bool = True,
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
            dense: Whether a linear map follows the attention in each block; `fused` returns networks without it.
            centres: Where the heads of "quadratic" and "generalized_quadratic" start: "normal", drawn from N(0, 2²), or
                "grid", the K x K whole-pixel shifts around the query, with K² heads and K odd. Sharpness is drawn
                either way.
            gated: Whether a gate per head mixes the distributions of content and position; needs content.
            position_start: How "distance", "axial_distance", "sinusoidal" and "learned_table" start. "network": with
                linear maps drawn like all others. "table": attending to as many pixels as "learned_axial" does.
            encoding_options: Further arguments of the encoding, such as {"hidden": 32} of "distance".

        Raises:
            ArgumentError: A size is out of range, or an argument does not fit another.
            UnknownNameError: There is no such encoding, or no such start.
        """
        for name, size in {
            "width": width,
            "depth": depth,
            "patch": patch,
            "image_size": image_size,
        }.items():
            whole_number(name, size)
        if not isinstance(encoding_options, Mapping | None):
            raise ArgumentError(
                must_be("encoding_options", "arguments by name, as a dict", encoding_options)
            )
        if gated and not content:
            raise ArgumentError(
                must_be(
                    "content", "True with gated=True, which mixes content and position", content
                )
            )
        if content and not gated and encoding == "learned_axial" and width % 2:
            raise ArgumentError(
                f"width must be even for learned_axial with content, but is {width}"
            )
        self_scoring = gated or not content
        extent = -(-image_size // patch)
        options: dict[str, Any] = (
            {"extent": extent} if encoding in ("learned_axial", "learned_table") else {}
        )
        if encoding == "learned_axial":
            options |= {
                "width": width if self_scoring else width // 2,
                "head_vectors": self_scoring,
            }
        options |= encoding_options or {}
        layer: dict[str, Any] = {"dropout": dropout}
        if content:
            layer["content"] = _content(
                width, gated=gated, shared_position=encoding == "learned_axial"
            )
        if gated:
            layer["gate"] = "sigmoid"
        block_heads = axis_lists("heads", heads, depth, least=1)
        mixers = [
            RelativeAttention2d(
                width, width, number, _create_encoding(encoding, number, centres, options), **layer
            )
            for number in block_heads
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
        for mixer in mixers:
            _set_start(mixer.encoding, position_start, size=extent, width=width)
        self.heads, self.content = block_heads, content


def _create_encoding(name: str, heads: int, centres: str, options: dict[str, Any]) -> Encoding:
    """Creates the encoding of a block, with its centres drawn or on a grid."""
    if centres not in _CENTRES:
        raise UnknownNameError("centres", centres, _CENTRES)
    if centres == "normal":
        return create_encoding(name, heads, 2, **options)
    if name not in ("generalized_quadratic", "quadratic"):
        raise ArgumentError(
            must_be("centres", f'"normal" with encoding {name!r}, which has no centres', centres)
        )
    return create_encoding(name, heads, 2, centres=grid_centres(heads), **options)


def _set_start(encoding: Encoding, start: str, *, size: int, width: int) -> None:
    """Draws an encoding anew if it is to start like a table."""
    if start not in _POSITION_STARTS:
        raise UnknownNameError("position_start", start, _POSITION_STARTS)
    if start == "network":
        return
    if not isinstance(encoding, AxialDistance | Distance | LearnedTable | Sinusoidal):
        raise ArgumentError(
            must_be("position_start", f'"network" with {type(encoding).__name__}', start)
        )
    start_like_table(encoding, size=size, width=width)


def _content(width: int, *, gated: bool, shared_position: bool) -> Content:
    """Chooses the content terms: those of the paper's network, or content alone beside a gate."""
    if gated:
        return Content(key_width=width, position=False, content_bias=False, query_bias=True)
    return Content(
        key_width=width,
        project_position=not shared_position,
        content_bias=False,
        query_bias=True,
        key_bias=True,
    )


# Arguments that `AttentionNet` and `ConvNet` have in common, beside `dense`.
_SHARED_ARGUMENTS = (
    "num_classes",
    "in_channels",
    "width",
    "depth",
    "ffn",
    "patch",
    "dropout",
    "initializer_range",
)


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
            padding_mode: How images are continued at the border: "zeros", "reflect", "replicate" or "circular".

        Raises:
            ArgumentError: A size is out of range, or the kernel has no middle.
            UnknownNameError: The padding mode is unknown.
        """
        for name, size in {"kernel_size": kernel_size, "width": width, "depth": depth}.items():
            whole_number(name, size)
        if kernel_size % 2 == 0:
            raise ArgumentError(
                f"kernel_size must be odd, so that the kernel has a middle, but is {kernel_size}"
            )
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
        """Makes a `ConvNet` of a network of its form whose blocks hold convolutions, as `network_to_conv` returns it.

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
        mixers = [_plain_mixer(number, block) for number, block in enumerate(network.blocks)]
        modes = sorted({mixer.padding_mode for mixer in mixers})
        dense = {isinstance(block.dense, nn.Linear) for block in network.blocks}
        if len(modes) > 1 or len(dense) > 1:
            differing = (
                f"padding modes {' and '.join(modes)}"
                if len(modes) > 1
                else "linear maps in some blocks only"
            )
            raise ConversionError(
                f"cannot make a ConvNet: the blocks have {differing}, but must be alike"
            )
        size = max(max(mixer.kernel_size) for mixer in mixers)
        shared = {name: network.arguments[name] for name in _SHARED_ARGUMENTS}
        with torch.device("meta"):  # all tensors come from the network
            made = cls(size, **shared, dense=dense.pop(), padding_mode=modes[0])
        source = copy.deepcopy(network)
        for block in source.blocks:
            block.mixer = _enlarge(cast(nn.Conv2d, block.mixer), size)
        made.patches, made.embed, made.blocks, made.head = (
            source.patches,
            source.embed,
            source.blocks,
            source.head,
        )
        return made.train(network.training)


def _plain_mixer(number: int, block: nn.Module) -> nn.Conv2d:
    """Returns the convolution of a block, which must be one that a `ConvNet` has."""
    assert isinstance(block, MixingBlock)
    mixer, start = block.mixer, f"cannot make a ConvNet: block {number} mixes with"
    if type(mixer) is not nn.Conv2d:
        raise ConversionError(f"{start} {type(mixer).__name__}, not Conv2d")
    halves = tuple(k // 2 for k in mixer.kernel_size)
    plain = (mixer.stride, mixer.dilation, mixer.groups) == (
        (1, 1),
        (1, 1),
        1,
    ) and mixer.bias is not None
    if not plain or mixer.padding != halves or any(k % 2 == 0 for k in mixer.kernel_size):
        raise ConversionError(
            f"{start} {mixer}, but must keep the size and have a bias and an odd kernel"
        )
    if mixer._forward_hooks or mixer._forward_pre_hooks:
        raise ConversionError(
            f"{start} {mixer}, which has hooks; remove them first, or make pruning permanent"
        )
    return mixer


def _enlarge(conv: nn.Conv2d, size: int) -> nn.Conv2d:
    """Pads the kernel of a convolution with zeros; the result is the same."""
    margins = [(size - k) // 2 for k in reversed(conv.kernel_size) for _ in range(2)]
    with torch.device("meta"):
        made = nn.Conv2d(
            conv.in_channels,
            conv.out_channels,
            size,
            padding=size // 2,
            padding_mode=conv.padding_mode,
        )
    weight = nn.functional.pad(conv.weight.detach(), margins).clone()
    made.weight = nn.Parameter(weight, requires_grad=conv.weight.requires_grad)
    assert isinstance(conv.bias, nn.Parameter)
    made.bias = conv.bias
    return made.train(conv.training)
