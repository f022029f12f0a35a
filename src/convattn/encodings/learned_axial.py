"""Learned axial encoding: one table of vectors per axis, shared by the heads (the paper's "learned")."""

from typing import Any, final

import torch
from einops import einsum
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

    def axis_score(self, axis: int, displacement: Tensor) -> Tensor:
        """Scores displacements along one axis."""
        compute_parameters(self.tables)
        if self.head_vectors is None:
            return displacement.new_zeros(self.num_heads, *displacement.shape)
        table = self.tables[axis].to(displacement.dtype)
        vectors = self.head_vectors[axis].to(displacement.dtype)
        scores = einsum(table, vectors, "displacements width, heads width -> displacements heads")
        return read_table(scores, displacement[..., None]).movedim(-1, 0)

    def axis_grid_score(
        self, number: int, axis: Axis, dtype: torch.dtype, device: torch.device | None
    ) -> Tensor:
        """Scores the displacements of a grid along one axis, whose vectors are cut out of the table."""
        if self.head_vectors is None:
            return super().axis_grid_score(number, axis, dtype, device)
        compute_parameters(self.tables)
        table = self.tables[number]
        vectors = table[places_in_table(len(table), axis)]
        return self.head_vectors[number].to(dtype) @ vectors.to(dtype).mT

    def axis_feature_vectors(self, axis: int, displacement: Tensor) -> Tensor:
        """Returns the features of displacements along one axis."""
        compute_parameters(self.tables)
        vectors = read_table(self.tables[axis], displacement[..., None])
        return place_along_axis(vectors, axis, self.dims)
