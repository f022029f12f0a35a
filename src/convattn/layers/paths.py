"""Paths of layers beside those of `convattn.functional.plan`: the definition, and scores that depend on the images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings import Encoding, Quadratic
from convattn.functional import (
    Cost,
    HeadMaps,
    Path,
    Work,
    add_bias,
    attend,
    attention_weights,
    combine_heads,
    displacement_scores,
    gated_weights,
    pad_keys,
)
from convattn.functional.plan import REQUESTED, can_be_read, explicit_flops
from convattn.functional.positions import (
    FORMS,
    Precision,
    kernel_precision,
    position_form,
    position_width,
)
from convattn.functional.torch_modes import FLASH_WIDTH, without_autocast
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
    """The definition, with all weights in memory: "reference"."""

    def cost(self) -> Cost:
        """Counts weights and means of all images at once, and features for every query and key."""
        work, content = self.work, self.content
        weights = work.weights(by_axis=False)
        if content is None:
            means = work.batch * work.heads * work.channels * work.queries
            memory = weights * (8 + work.itemsize) + 2 * means * work.itemsize
            return Cost(explicit_flops(work, "weights", by_axis=False), memory)
        pixels = work.heads * (work.queries + work.keys) * content.key_width
        numbers = work.batch * (3 * weights + pixels)
        if content.uses_position:
            numbers += weights * content.key_width
        displacements = work.keys if content.uses_position else 0
        flops = _content_flops(work, content.key_width, displacements)
        return Cost(flops, numbers * max(4, work.itemsize))

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Computes the weights, then the means."""
        keys = pad_keys(x, self.work.geometry)
        weights = weights_by_definition(
            self.encoding, self.work.axes, keys, self.content, self.share
        )
        y = attend(weights, keys, maps.whole(), maps.groups, self.dropout)
        return add_bias(y.view(*y.shape[:2], *self.work.sizes), bias)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ContentPath(_LayerPath):
    """Content scores by a fused kernel; with a gate, beside the attention of position on a path of its own."""

    content: ContentScores
    form: str  # how scores of displacements reach the kernel: one of `FORMS`
    precision: Precision  # of the kernel's queries, keys and values
    position: Path | None  # attention of positions alone, if a gate mixes it in

    def cost(self) -> Cost:
        """Counts queries, their channels, keys, values and means of all images, and what the kernel does."""
        work = self.work
        parts = self.precision.query * self.precision.key
        width = self.content.key_width + parts * position_width(self.form, work.axes)
        pixels = work.batch * work.heads * (3 * work.queries + 2 * work.keys)
        itemsize = self.precision.dtype.itemsize
        memory = pixels * max(width, work.channels) * itemsize + piece_bytes(work.device)
        flops = _content_flops(work, width, 0)
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
        work, alone = self.work, self.position is None
        return self.leak + self.content.rounding(
            self.encoding, work.axes, work.softmax_dtype, adds_score=alone
        )

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Attends to content, and to positions if a gate keeps them apart."""
        work, share = self.work, self.share
        keys = pad_keys(x, work.geometry)
        # compiled in bfloat16, Inductor's loops over scaled matrices and over their copies do not fit together
        own, compiles = maps, torch.compiler.is_compiling()
        if share is not None and not compiles:
            own = maps.weighted(1 - share)
        value = own.values(keys) if self.order == "values" else keys.flatten(2).mT[:, None]
        mixed = self.content.attend(
            keys,
            work.axes,
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
        if self.order == "weights":
            y = combine_heads(mixed, own.whole(), maps.groups)
        else:
            y = own.combine(mixed)
        y = add_bias(y.view(*y.shape[:2], *work.sizes), bias)
        if self.position is None or share is None:
            return y
        return y + self.position.attend(x, maps.weighted(share), None)


def _content_flops(work: Work, width: int, displacements: int) -> int:
    """Counts the operations of content attention with queries and keys of a width."""
    linear = work.channels * (work.queries + work.keys)
    products = work.batch * width * (linear + work.queries * work.keys)
    position = work.batch * work.queries * displacements * width
    softmax = 5 * work.batch * work.weights(by_axis=False)
    means = work.mixing(work.channels, by_axis=False)
    return 2 * work.heads * (products + position) + softmax + means + work.maps


def content_path(impl: str, *, position: Path | None, **options: Any) -> ContentPath:
    """Chooses how scores of displacements reach the kernel.

    Args:
        impl: "auto", "content" or "quadratic".
        position: Attention of positions alone, if a gate mixes it in.
        **options: The other arguments of `ContentPath`.

    Returns:
        The path.
    """
    work, encoding, content = options["work"], options["encoding"], options["content"]
    form = impl
    if impl != "quadratic":
        form = position_form(encoding, work.axes, work.device)
    dtype = work.product_dtype
    precision = kernel_precision(form, work.axes, dtype, work.device, content.key_width)
    order, inner = "weights", work.channels
    if work.inner < work.channels:
        order, inner = "values", work.inner
    reason = REQUESTED
    if impl == "auto":
        reason = "the scores depend on the input"
    reason += f"; scores of displacements as {FORMS[form]}"
    if precision.dtype != work.softmax_dtype:
        name = str(precision.dtype).removeprefix("torch.")
        reason += f" in {name}, in {precision.query} parts"
        parts = precision.query * precision.key
        width = content.key_width + parts * position_width(form, work.axes)
        if max(width, inner) > FLASH_WIDTH:
            reason += f"; wider than the {FLASH_WIDTH} channels of torch's flash kernel"
    return ContentPath(
        name="content",
        reason=reason,
        order=order,
        leak=0.0 if position is None else position.leak,
        form=form,
        precision=precision,
        position=position,
        **options,
    )
