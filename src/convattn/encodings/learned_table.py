"""Learned table: one free score per head and displacement."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from convattn.encodings.encoding import Encoding, chosen_extent, read_table, require_extent
from convattn.grid import PerAxis


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

    def __init__(self, num_heads: int, dims: int, *, extent: PerAxis | None = None) -> None:
        """Builds the encoding.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            extent: E ≥ 1, for all axes or one each: the table holds displacements from −(E − 1) to E − 1, those of a
                grid of E pixels, padding included. None holds common sizes: 520 along a sequence (512 pixels, with up
                to 8 of padding on each side), 40 along each axis of an image (32 and 8), 20 of a volume (16 and 4).
                Training never reaches the entries beyond the size of its images; `attention_to_conv` then needs that
                size, as `spatial=`.

        Raises:
            ArgumentError: A size is out of range.
        """
        super().__init__(num_heads, dims)
        self.extent = chosen_extent(extent, dims)
        self.scores = nn.Parameter(0.02 * torch.randn(num_heads, *(2 * size - 1 for size in self.extent)))

    def options(self) -> dict[str, Any]:
        """Returns extent."""
        return {"extent": list(self.extent)}

    def score(self, displacement: Tensor) -> Tensor:
        """Scores displacements."""
        return read_table(self.scores.movedim(0, -1), displacement).movedim(-1, 0)

    def require_span(self, lowest: Sequence[float], highest: Sequence[float]) -> None:
        """Raises EncodingRangeError if the tables do not hold a box of displacements."""
        require_extent(self, self.extent, lowest, highest)
