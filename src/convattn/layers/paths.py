"""Paths of layers beside those of `convattn.functional.plan`: the definition, and scores that depend on the images."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings import Encoding
from convattn.functional import (
    Cost,
    HeadMaps,
    Path,
    Work,
    add_bias,
    attend,
    attention_weights,
    displacement_scores,
    gated_weights,
    pad_keys,
)
from convattn.functional.content import PIECE_BYTES
from convattn.functional.plan import explicit_flops
from convattn.functional.torch_modes import without_autocast
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
    """Content scores, some images or rows of queries at a time."""

    content: ContentScores

    def cost(self) -> Cost:
        """Counts the pieces that are in memory at a time."""
        work, key_width = self.work, self.content.key_width
        displacements = 0
        if self.content.uses_position:
            along = [axis.highest - axis.lowest + 1 for axis in work.axes]
            displacements = sum(along) if self.encoding.axis_additive else prod(along)
        flops = _content_flops(work, key_width, displacements)
        row = work.queries // next((count for count in work.sizes if count > 1), 1)
        fitting = PIECE_BYTES // (8 * work.heads * work.keys)
        at_once = min(work.queries, max(row, fitting))
        pixels = work.heads * (work.queries + work.keys) * key_width
        return Cost(flops, 12 * work.heads * at_once * work.keys + pixels * work.itemsize)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Attends in little memory."""
        y = self.content.attend(
            pad_keys(x, self.work.geometry),
            self.work.axes,
            self.encoding,
            maps.whole(),
            maps.groups,
            share=self.share,
            dropout=self.dropout,
        )
        return add_bias(y, bias)


def _content_flops(work: Work, width: int, displacements: int) -> int:
    """Counts the operations of content attention with queries and keys of a width."""
    linear = work.channels * (work.queries + work.keys)
    products = work.batch * width * (linear + work.queries * work.keys)
    position = work.batch * work.queries * displacements * width
    softmax = 5 * work.batch * work.weights(by_axis=False)
    means = work.mixing(work.channels, by_axis=False)
    return 2 * work.heads * (products + position) + softmax + means + work.maps
