"""Learned table: one free score per head and displacement."""

from typing import Any, final

import torch
from torch import Tensor, nn

from convattn.encodings.encoding import Encoding
from convattn.encodings.tables import read_table, require_extent
from convattn.grid import PerAxis, axis_lists

__all__ = ["LearnedTable"]


@final
class LearnedTable(Encoding):
    """Score T_h[δ]: a table with one entry per head and displacement, the relative position bias of Swin and others.

    Between integer displacements the table is interpolated multilinearly; beyond it the encoding raises.

    Attributes:
        scores: T, (heads, 2·extent_1 − 1, …, 2·extent_n − 1); drawn from N(0, 0.02²).

    Example:
        >>> LearnedTable(4, 2, extent=7).scores.shape
        torch.Size([4, 13, 13])
    """

    def __init__(self, num_heads: int, dims: int, *, extent: PerAxis = 16) -> None:
        """Builds the encoding.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            extent: E ≥ 1, for all axes or one each: displacements from −(E − 1) to E − 1 are held.

        Raises:
            ArgumentError: A size is out of range.
        """
        super().__init__(num_heads, dims)
        self.extent = axis_lists("extent", extent, dims, least=1)
        self.scores = nn.Parameter(0.02 * torch.randn(num_heads, *(2 * size - 1 for size in self.extent)))

    @property
    def feature_width(self) -> int:
        """None: the heads share nothing."""
        return 0

    def options(self) -> dict[str, Any]:
        """Returns extent."""
        return {"extent": list(self.extent)}

    def _score(self, displacement: Tensor) -> Tensor:
        return read_table(self.scores.movedim(0, -1), displacement).movedim(-1, 0)

    def _features(self, displacement: Tensor) -> Tensor:
        return displacement[..., :0]

    def _require_span(self, axis: int, lowest: float, highest: float) -> None:
        require_extent("LearnedTable", self.extent, axis, lowest, highest)
