"""Learned axial encoding: one table of vectors per axis, shared by the heads (the paper's "learned")."""

from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings.encoding import AxisAdditiveEncoding, compute_parameters, place_along_axis
from convattn.encodings.learned_table import places_in_table, read_table, table_extent
from convattn.grid import Axis, PerAxis, whole_number


@final
class LearnedAxial(AxisAdditiveEncoding):
    """Score Σ_a v_h,a · r_a[δ_a]: per axis a table of vectors shared by the heads, and one vector per head.

    Between integer displacements the tables are interpolated linearly; beyond them the encoding raises.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, §4.3 ("learned"); features are r_δ = [r_1[δ_1], …, r_n[δ_n]].

    Attributes:
        tables: r_a, one (2·extent − 1, width) per axis; drawn from N(0, 1).
        head_vectors: v, (dims, heads, width), drawn from N(0, 0.02²); or None, and then the score is zero and the
            encoding serves by its features alone (the paper's "learned + content").

    Example:
        >>> encoding = LearnedAxial(9, 2, extent=16, width=400)
        >>> sum(parameter.numel() for parameter in encoding.parameters())
        32000
    """

    def __init__(
        self,
        num_heads: int,
        dims: int,
        *,
        extent: PerAxis | None = None,
        width: int = 400,
        head_vectors: bool = True,
    ) -> None:
        """Builds the encoding.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            extent: E ≥ 1, for all axes or one each, as for `LearnedTable`; None holds common sizes.
            width: Width of the vectors, ≥ 1.
            head_vectors: Whether heads have vectors of their own.

        Raises:
            ArgumentError: A size is out of range.
        """
        super().__init__(num_heads, dims)
        self.extent = table_extent(extent, dims)
        self.width = whole_number("width", width)
        self.tables = nn.ParameterList()
        for size in self.extent:
            table = torch.randn(2 * size - 1, self.width)
            self.tables.append(nn.Parameter(table))
        self.head_vectors = None
        if head_vectors:
            vectors = torch.randn(dims, num_heads, self.width)
            self.head_vectors = nn.Parameter(0.02 * vectors)

    def options(self) -> dict[str, Any]:
        """Returns extent, width and head_vectors."""
        return {
            "extent": list(self.extent),
            "width": self.width,
            "head_vectors": self.head_vectors is not None,
        }

    def axis_scores(self, displacement: Tensor) -> Tensor:
        """Scores displacements along each axis."""
        if self.head_vectors is None:
            return displacement.new_zeros(self.num_heads, *displacement.shape)
        compute_parameters(self.tables)
        dtype = displacement.dtype
        scores = []
        for vectors, table, along in zip(self.head_vectors, self.tables, displacement, strict=True):
            held = table.to(dtype) @ vectors.to(dtype).mT
            scores.append(read_table(held, along[..., None]).movedim(-1, 0))
        return torch.stack(scores, dim=1)

    def axis_tables(
        self,
        axes: Sequence[Axis],
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> list[Float[Tensor, "heads _"]]:
        """Scores displacements along each axis, whose vectors are cut out of the table."""
        if self.head_vectors is None:
            return super().axis_tables(axes, dtype, device)
        self.require_axes(axes)
        compute_parameters(self)
        compute_parameters(self.tables)
        scores = []
        for vectors, table, axis in zip(self.head_vectors, self.tables, axes, strict=True):
            own = table[places_in_table(len(table), axis)]
            scores.append(vectors.to(dtype) @ own.to(dtype).mT)
        return scores

    def axis_feature_vectors(self, axis: int, displacement: Tensor) -> Tensor:
        """Returns the features of displacements along one axis."""
        compute_parameters(self.tables)
        vectors = read_table(self.tables[axis], displacement[..., None])
        return place_along_axis(vectors, axis, self.dims)
