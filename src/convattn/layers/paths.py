"""Paths of layers beside those of `convattn.functional.plan`: the definition, and scores that depend on the images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings import Encoding, Quadratic
from convattn.functional import (
    CallSizes,
    Cost,
    HeadMaps,
    Path,
    add_bias,
    attend,
    attention_weights,
    combine_heads,
    displacement_scores,
    gated_weights,
    pad_keys,
)
from convattn.functional.path import REQUESTED
from convattn.functional.positions import (
    FORMS,
    Precision,
    kernel_precision,
    position_form,
    position_width,
)
from convattn.functional.separable import explicit_flops
from convattn.functional.torch_modes import FLASH_WIDTH, can_be_read, without_autocast
from convattn.functional.workspace import piece_bytes
from convattn.grid import Axis
from convattn.layers.content_scores import ContentScores


def weights_by_definition(
    encoding: Encoding,
    axes: Sequence[Axis],
    like: Tensor,
    content: ContentScores | None = None,
    share: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "*images heads queries keys"]:
    """Computes the weights of every query and key, in at least float32; with content one set for each image.

    Args:
        encoding: Displacement → score per head.
        axes: Queries and keys along each axis.
        like: A tensor of the dtype and the device of the images; with content the key images.
        content: Content scores, or None.
        share: Share of position per head if a gate mixes two distributions, or None.

    Returns:
        The weights; queries and keys are flattened.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    with without_autocast(like.device):
        position = displacement_scores(encoding.table(axes, dtype, like.device), axes)
    if content is None:
        return attention_weights(position)
    scores = content(like, axes, encoding)
    if share is None:
        return attention_weights(position + scores)
    return gated_weights(attention_weights(scores), attention_weights(position), share)


@dataclass(frozen=True, eq=False, kw_only=True)
class _LayerPath(Path):
    encoding: Encoding
    content: ContentScores | None  # None if scores do not depend on the images
    share: Float[Tensor, " heads"] | None  # share of position per head of a gated layer
    dropout: float


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ReferencePath(_LayerPath):
    """The definition, with all weights in memory."""

    name: ClassVar[str] = "reference"

    def cost(self) -> Cost:
        """Counts weights and means of all images at once, and features for every query and key."""
        sizes, content = self.sizes, self.content
        weights = sizes.weights(by_axis=False)
        if content is None:
            means = sizes.batch * sizes.heads * sizes.channels * sizes.queries
            memory = weights * (8 + sizes.itemsize) + 2 * means * sizes.itemsize
            return Cost(explicit_flops(sizes, by_axis=False), memory)
        pixels = sizes.heads * (sizes.queries + sizes.keys) * content.key_width
        numbers = sizes.batch * (3 * weights + pixels)
        if content.uses_position:
            numbers += weights * content.key_width
        displacements = sizes.keys if content.uses_position else 0
        flops = _content_flops(sizes, content.key_width, displacements)
        return Cost(flops, numbers * max(4, sizes.itemsize))

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Computes the weights, then the means."""
        keys = pad_keys(x, self.sizes.geometry)
        weights = weights_by_definition(
            self.encoding, self.sizes.axes, keys, self.content, self.share
        )
        y = attend(weights, keys, maps.whole(), maps.groups, self.dropout)
        return add_bias(y.view(*y.shape[:2], *self.sizes.grid), bias)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ContentPath(_LayerPath):
    """Content scores by a fused kernel; with a gate, beside the attention of position on a path of its own."""

    name: ClassVar[str] = "content"

    content: ContentScores
    form: str  # how scores of displacements reach the kernel: one of `FORMS`
    precision: Precision  # of the kernel's queries, keys and values
    position: Path | None  # attention of positions alone, if a gate mixes it in

    def cost(self) -> Cost:
        """Counts queries, their channels, keys, values and means of all images, and what the kernel does."""
        sizes = self.sizes
        parts = self.precision.query * self.precision.key
        width = self.content.key_width + parts * position_width(self.form, sizes.axes)
        pixels = sizes.batch * sizes.heads * (3 * sizes.queries + 2 * sizes.keys)
        itemsize = self.precision.dtype.itemsize
        memory = pixels * max(width, sizes.channels) * itemsize + piece_bytes(sizes.device)
        flops = _content_flops(sizes, width, 0)
        if self.position is not None:
            position = self.position.cost()
            flops, memory = flops + position.flops, memory + position.bytes
        return Cost(flops, memory)

    @property
    def bound(self) -> float:
        """Adds what rounding moves where scores of displacements are differences of larger numbers."""
        if self.form != "quadratic" or not can_be_read(self.content.query.weight):
            return self.leak
        assert isinstance(self.encoding, Quadratic)
        sizes, alone = self.sizes, self.position is None
        return self.leak + self.content.rounding(
            self.encoding, sizes.axes, sizes.softmax_dtype, adds_score=alone
        )

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Attends to content, and to positions if a gate keeps them apart."""
        sizes, share = self.sizes, self.share
        keys = pad_keys(x, sizes.geometry)
        # compiled in bfloat16, Inductor's loops over scaled matrices and over their copies do not fit together
        own, compiles = maps, torch.compiler.is_compiling()
        if share is not None and not compiles:
            own = maps.weighted(1 - share)
        value = own.values(keys) if self.values_first else keys.flatten(2).mT[:, None]
        mixed = self.content.attend(
            keys,
            sizes.axes,
            self.encoding,
            value,
            form=self.form,
            precision=self.precision,
            adds_score=share is None,
            dropout=self.dropout,
        )
        if share is not None and compiles:
            mixed = mixed * (1 - share)[:, None, None]
        mixed = mixed.mT
        if mixed.dtype.itemsize > keys.dtype.itemsize:
            mixed = mixed.to(keys.dtype)
        if self.values_first:
            y = own.combine(mixed)
        else:
            y = combine_heads(mixed, own.whole(), maps.groups)
        y = add_bias(y.view(*y.shape[:2], *sizes.grid), bias)
        if self.position is None or share is None:
            return y
        return y + self.position.attend(x, maps.weighted(share), None)


def _content_flops(sizes: CallSizes, width: int, displacements: int) -> int:
    """Counts the operations of content attention with queries and keys of a width."""
    linear = sizes.channels * (sizes.queries + sizes.keys)
    products = sizes.batch * width * (linear + sizes.queries * sizes.keys)
    position = sizes.batch * sizes.queries * displacements * width
    softmax = 5 * sizes.batch * sizes.weights(by_axis=False)
    means = sizes.mixing(sizes.channels, by_axis=False)
    return 2 * sizes.heads * (products + position) + softmax + means + sizes.maps


def content_path(impl: str, *, position: Path | None, **options: Any) -> ContentPath:
    """Chooses how scores of displacements reach the kernel.

    Args:
        impl: "auto", "content" or "quadratic".
        position: Attention of positions alone, if a gate mixes it in.
        **options: The other arguments of `ContentPath`.

    Returns:
        The path.
    """
    sizes, encoding, content = options["sizes"], options["encoding"], options["content"]
    form = impl
    if impl != "quadratic":
        form = position_form(encoding, sizes.axes, sizes.device)
    dtype = sizes.product_dtype
    precision = kernel_precision(form, sizes.axes, dtype, sizes.device, content.key_width)
    inner = min(sizes.inner, sizes.channels)
    reason = REQUESTED
    if impl == "auto":
        reason = "the scores depend on the input"
    reason += f"; scores of displacements as {FORMS[form]}"
    if precision.dtype != sizes.softmax_dtype:
        name = str(precision.dtype).removeprefix("torch.")
        reason += f" in {name}, in {precision.query} parts"
        parts = precision.query * precision.key
        width = content.key_width + parts * position_width(form, sizes.axes)
        if max(width, inner) > FLASH_WIDTH:
            reason += f"; wider than the {FLASH_WIDTH} channels of torch's flash kernel"
    return ContentPath(
        reason=reason,
        values_first=inner < sizes.channels,
        leak=0.0 if position is None else position.leak,
        form=form,
        precision=precision,
        position=position,
        **options,
    )
