"""One softmax over all pairs of queries and keys: small images of any scores, and dropout of single weights."""

from dataclasses import dataclass
from typing import ClassVar, final

from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.fused import Mask, fused_attention
from convattn.functional.path import Cost, Heads, KeyPath
from convattn.functional.reference import HeadMaps
from convattn.functional.separable import explicit_cost, explicit_means
from convattn.functional.torch_modes import piece_bytes


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class DensePath(KeyPath):
    """Explicit weights of all pairs of queries and keys."""

    name: ClassVar[str] = "dense"
    weights: Float[Tensor, "heads queries keys"]  # in at least float32
    dropout: float = 0.0  # probability of dropping a weight

    @classmethod
    def refuses(cls, heads: Heads) -> str | None:
        """Returns why heads cannot be computed in this way; None if they can."""
        return heads.of_images

    def cost(self) -> Cost:
        """Counts the softmax, the means, and the matrices in the order of the path."""
        return explicit_cost(self.sizes, by_axis=False, values_first=self.values_first)

    def outputs(self, keys: Tensor, maps: HeadMaps) -> Tensor:
        """Takes weighted means of all pixels, before or after the matrices."""
        weights = self.weights
        if self.dropout:
            weights = functional.dropout(weights, self.dropout)
        return explicit_means([weights], keys.flatten(2), maps, values_first=self.values_first)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class PiecewisePath(KeyPath):
    """The same where all weights would take much memory: of some queries at a time, and again for the gradient."""

    name: ClassVar[str] = DensePath.name
    table: Float[Tensor, "heads displacements"]  # scores
    dropout: float = 0.0  # probability of dropping a weight

    def cost(self) -> Cost:
        """Counts the means of all images, and a few pieces."""
        sizes = self.sizes
        width = sizes.inner if self.values_first else sizes.channels
        means = sizes.batch * sizes.heads * sizes.queries * width
        flops = sizes.explicit_flops(by_axis=False, values_first=self.values_first)
        return Cost(flops, 2 * means * sizes.itemsize + 4 * piece_bytes(sizes.device))

    def outputs(self, keys: Tensor, maps: HeadMaps) -> Tensor:
        """Attends as content does, without queries; the images are so many more channels."""
        sizes = self.sizes
        values = keys.flatten(2).mT[:, None]
        if self.values_first:
            values = maps.values(keys)
        value = rearrange(values, "batch heads keys channels -> 1 heads keys (batch channels)")
        query = value.new_zeros(1, sizes.heads, sizes.queries, 0)
        key = value.new_zeros(1, sizes.heads, sizes.keys, 0)
        mask = Mask(sizes.axes, [self.table], ())
        means = fused_attention(query, key, value, mask, self.dropout)
        by_image = rearrange(
            means,
            "1 heads queries (batch channels) -> batch heads channels queries",
            channels=values.shape[-1],
        )
        return maps.combine(by_image, values_first=self.values_first)
