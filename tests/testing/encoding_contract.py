"""What every encoding of the library promises beyond the contract for authors: what the base classes do."""

import copy

import pytest
import torch

from convattn.budget import assert_within_budget
from convattn.encodings import AxisAdditiveEncoding
from convattn.errors import ArgumentError, ShapeError
from convattn.testing.contracts import EncodingContract, by_formula, grid_points


class FullEncodingContract(EncodingContract):
    """The contract of encodings, with shapes, features by axis and refusals."""

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_scores_at_whole_pixels_are_the_formula(self, dims: int) -> None:
        """Scores at integer displacements, where tables have their entries, equal the formula's."""
        encoding = self.drawn(dims)
        points = self.points(dims, 31, dtype=torch.float32).round()
        self.check_scores(encoding, points, encoding(points))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_features_of_the_axes_add_up(self, dims: int, dtype: torch.dtype) -> None:
        """The features of an axis-additive encoding are the sum of its axes' tables, in the dtype asked for.

        They lose nothing beyond the rounding of the parameters, and are refused where there are none.
        """
        encoding, axes = self.drawn(dims).to(dtype), self.axes(dims)
        if not isinstance(encoding, AxisAdditiveEncoding):
            return
        if not encoding.feature_width:
            with pytest.raises(
                ArgumentError, match="encoding must be one with features shared by all heads"
            ):
                encoding.axis_features(axes)
            return
        wide = torch.promote_types(dtype, torch.float32)
        tables = encoding.axis_features(axes, wide)
        assert [table.shape for table in tables] == [
            (len(axis.displacements()), encoding.feature_width) for axis in axes
        ]
        assert {table.dtype for table in tables} == {wide}
        total = tables[0]
        for table in tables[1:]:
            total = total[..., None, :] + table
        points, formula = grid_points(axes), self.formula.features
        assert formula is not None
        hi = formula(copy.deepcopy(encoding).double(), points.double())
        assert_within_budget(
            total.flatten(0, -2), hi, by_formula(formula, encoding, points.to(wide))
        )

    def test_shape_of_the_points_is_kept(self) -> None:
        encoding, points = self.drawn(2), self.points(2, 3, 5, dtype=torch.float32)
        assert encoding(points).shape == (3, 3, 5)
        assert encoding(points[:0]).shape == (3, 0, 5)
        assert encoding(points[0, 0]).shape == (3,)

    @pytest.mark.parametrize("shape", [(3,), (5, 1)])
    def test_displacements_of_other_dimension_are_refused(self, shape: tuple[int, ...]) -> None:
        encoding = self.drawn(2)
        for ask in (encoding, encoding.features) if encoding.feature_width else (encoding,):
            with pytest.raises(ShapeError, match=r"displacement must be of shape \(…, 2\)"):
                ask(torch.zeros(shape))

    @pytest.mark.parametrize("dims", [1, 3])
    def test_grids_of_other_dimension_are_refused(self, dims: int) -> None:
        encoding = self.drawn(2)
        calls = [encoding.table]
        if isinstance(encoding, AxisAdditiveEncoding):
            calls.append(encoding.axis_tables)
            if encoding.feature_width:
                calls.append(encoding.axis_features)
        for ask in calls:
            with pytest.raises(ShapeError, match=rf"len\(axes\) must be 2, but is {dims}"):
                ask(self.axes(dims))

    @pytest.mark.parametrize("value", [torch.inf, torch.nan])
    def test_displacements_that_are_not_finite_are_refused(self, value: float) -> None:
        with pytest.raises(ArgumentError, match="displacement must be finite"):
            self.drawn(2)(torch.full((3, 2), value))
