"""One softmax over all pairs of queries and keys: small images of any scores, and dropout of single weights."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.path import CallSizes, Cost, Heads, KeyPath
from convattn.functional.reference import HeadMaps, position_weights
from convattn.functional.separable import explicit_cost, explicit_means, values_come_first


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class DensePath(KeyPath):
    """Explicit weights of all pairs of queries and keys."""

    name: ClassVar[str] = "dense"
    weights: Float[Tensor, "heads queries keys"]  # in at least float32
    dropout: float = 0.0  # probability of dropping a weight

    @classmethod
    def of(
        cls,
        table: Float[Tensor, "heads *displacements"],
        sizes: CallSizes,
        reason: str,
        dropout: float = 0.0,
    ) -> "DensePath":
        """Computes the weights from the scores of all displacements."""
        return cls(
            reason=reason,
            sizes=sizes,
            values_first=values_come_first(sizes, by_axis=False),
            weights=position_weights(table, sizes.axes),
            dropout=dropout,
        )

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
