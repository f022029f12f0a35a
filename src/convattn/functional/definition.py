"""The definition as a path: explicit scores and all weights in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from convattn.functional.path import Cost, Heads, KeyPath
from convattn.functional.reference import (
    HeadMaps,
    attend,
    attention_weights,
    displacement_scores,
    gated_weights,
    scores_of_images,
)
from convattn.functional.torch_modes import at_least_float32, without_autocast
from convattn.grid import Axis


def weights_by_definition(
    heads: Heads,
    axes: Sequence[Axis],
    like: Tensor,
) -> Float[Tensor, "*images heads queries keys"]:
    """Computes the weights of every query and key, in at least float32; with content one set for each image.

    Args:
        heads: How they weigh keys.
        axes: Queries and keys along each axis.
        like: A tensor of the dtype and the device of the images; with content the key images.

    Returns:
        The weights; queries and keys are flattened.
    """
    dtype = at_least_float32(like.dtype)
    with without_autocast(like.device):
        position = displacement_scores(heads.encoding.table(axes, dtype, like.device), axes)
    if heads.content is None:
        return attention_weights(position)
    scores = scores_of_images(heads.content, heads.encoding, like, axes)
    if heads.share is None:
        return attention_weights(position + scores)
    return gated_weights(attention_weights(scores), attention_weights(position), heads.share)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ReferencePath(KeyPath):
    """The definition, with all weights in memory."""

    name: ClassVar[str] = "reference"
    heads: Heads

    @classmethod
    def refuses(cls, heads: Heads) -> str | None:  # noqa: ARG003
        """Refuses nothing."""
        return None

    def cost(self) -> Cost:
        """Counts weights and means of all images at once, and features for every query and key."""
        sizes = self.sizes
        content = self.heads.content
        weights = sizes.weights(by_axis=False)
        if content is None:
            means = sizes.batch * sizes.heads * sizes.channels * sizes.queries
            memory = 8 * weights + (weights + 2 * means) * sizes.itemsize
            return Cost(sizes.explicit_flops(by_axis=False), memory)
        width = content.key_width
        positions = content.uses_position
        pixels = sizes.heads * (sizes.queries + sizes.keys) * width
        numbers = sizes.batch * (3 * weights + pixels) + positions * weights * width
        flops = sizes.content_flops(content, width, positions * sizes.keys, values_first=False)
        return Cost(flops, numbers * max(4, sizes.itemsize))

    def outputs(self, keys: Tensor, maps: HeadMaps) -> Tensor:
        """Computes the weights, then the means."""
        weights = weights_by_definition(self.heads, self.sizes.axes, keys)
        return attend(weights, keys, maps.whole(), maps.groups, self.heads.dropout)
