"""What every encoding promises, as a test class to inherit."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from convattn.encodings import AxisAdditiveEncoding, Encoding
from convattn.errors import ArgumentError, ShapeError
from convattn.grid import Axis
from convattn.testing.budget import assert_within_budget, roundings
from convattn.testing.dense import Formula

__all__ = ["EncodingContract", "stir"]

M = TypeVar("M", bound=nn.Module)


class EncodingContract:
    """What every encoding promises.

    Attributes:
        formula: Its equations.
        reach: Largest absolute displacement that the encodings made by `create` hold.
    """

    formula: Formula
    reach: int = 6

    def create(self, num_heads: int, dims: int) -> Encoding:
        """Makes an encoding.

        Args:
            num_heads: Number of heads.
            dims: Number of axes.
        """
        raise NotImplementedError

    def made(self, dims: int, num_heads: int = 3) -> Encoding:
        """Makes an encoding with random parameters, the same each time."""
        torch.manual_seed(dims)
        return stir(self.create(num_heads, dims))

    def points(self, dims: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Draws real displacements within reach."""
        uniform = torch.rand(*shape, dims, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        return ((2 * uniform - 1) * self.reach).to(dtype)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_scores_are_the_formula(self, dims: int, dtype: torch.dtype) -> None:
        self._check_scores(self.made(dims), self.points(dims, 31, dtype=dtype))

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_scores_at_whole_pixels_are_the_formula(self, dims: int) -> None:
        """Scores at integer displacements, where tables have their entries, equal the formula's."""
        self._check_scores(self.made(dims), self.points(dims, 31, dtype=torch.float32).round())

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_narrow_parameters_are_scored_in_the_dtype_of_the_displacements(self, dtype: torch.dtype) -> None:
        """A half-precision encoding loses nothing beyond the rounding of its parameters."""
        self._check_scores(self.made(2).to(dtype), self.points(2, 31, dtype=torch.float32))

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_table_holds_the_scores_of_a_grid(self, dims: int) -> None:
        """The table of a grid lists the scores from the lowest displacement to the highest, axis by axis."""
        encoding, axes = self.made(dims), self.axes(dims)
        table = encoding.table(axes)
        assert table.shape == (encoding.num_heads, *(len(axis.displacements()) for axis in axes))
        self._check_table(encoding, axes, table)

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_tables_of_the_axes_add_up(self, dims: int) -> None:
        """The score of an axis-additive encoding is the sum of its axes' tables; the others claim no such thing."""
        encoding, axes = self.made(dims), self.axes(dims)
        assert encoding.axis_additive == isinstance(encoding, AxisAdditiveEncoding)
        if isinstance(encoding, AxisAdditiveEncoding):
            pairs = zip(encoding.axis_tables(axes), _indices(axes), strict=True)
            self._check_table(encoding, axes, torch.stack([table[:, index] for table, index in pairs]).sum(0))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_features_of_the_axes_add_up(self, dims: int, dtype: torch.dtype) -> None:
        """The features of an axis-additive encoding are the sum of its axes' tables, in the dtype asked for.

        They lose nothing beyond the rounding of the parameters, and are refused where there are none.
        """
        encoding, axes = self.made(dims).to(dtype), self.axes(dims)
        if not isinstance(encoding, AxisAdditiveEncoding):
            return
        if not encoding.feature_width:
            with pytest.raises(ArgumentError, match="encoding must be one with features shared by all heads"):
                encoding.axis_features(axes)
            return
        wide = torch.promote_types(dtype, torch.float32)
        tables = encoding.axis_features(axes, wide)
        assert [table.shape for table in tables] == [
            (len(axis.displacements()), encoding.feature_width) for axis in axes
        ]
        assert {table.dtype for table in tables} == {wide}
        total = torch.stack([table[index] for table, index in zip(tables, _indices(axes), strict=True)]).sum(0)
        points, formula = _points(axes), self.formula.features
        assert formula is not None
        hi = formula(copy.deepcopy(encoding).double(), points.double())
        assert_within_budget(total, hi, _by_formula(formula, encoding, points.to(wide)))

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_scores_are_linear_in_the_features(self, dims: int) -> None:
        """Up to a constant per head, which the softmax cancels, scores lie in the span of the features."""
        encoding = self.made(dims).double()
        points = self.points(dims, 4 * max(1, encoding.feature_width) + 1)
        if not encoding.feature_width:
            with pytest.raises(ArgumentError, match="encoding must be one with features shared by all heads"):
                encoding.features(points)
            return
        features, scores = encoding.features(points).detach(), encoding(points).detach().mT
        assert features.shape == (len(points), encoding.feature_width)
        formula = self.formula.features
        assert formula is not None
        with torch.no_grad():
            lows = _by_formula(formula, encoding, points)
        assert_within_budget(features, lows[0], lows)
        basis, _ = torch.linalg.qr(torch.cat([features, features.new_ones(len(points), 1)], dim=1))
        rest = scores - basis @ (basis.mT @ scores)
        assert rest.abs().max() <= len(points) * torch.finfo(torch.float64).eps * max(1.0, scores.norm().item())

    @pytest.mark.parametrize("dims", [1, 2])
    def test_gradients_are_those_of_finite_differences(self, dims: int) -> None:
        encoding = self.made(dims, num_heads=2).double()
        parameters = dict(encoding.named_parameters())

        def scores(displacement: Tensor, *values: Tensor) -> Tensor:
            return functional_call(encoding, dict(zip(parameters, values, strict=True)), (displacement,))

        inputs = (self.points(dims, 3), *parameters.values())
        assert torch.autograd.gradcheck(scores, [value.detach().requires_grad_() for value in inputs])

    def test_shape_of_the_points_is_kept(self) -> None:
        encoding, points = self.made(2), self.points(2, 3, 5, dtype=torch.float32)
        assert encoding(points).shape == (3, 3, 5)
        assert encoding(points[:0]).shape == (3, 0, 5)
        assert encoding(points[0, 0]).shape == (3,)

    def test_rebuilds_from_its_class_and_options(self) -> None:
        """Class, sizes, options and state give an encoding with the same scores, bit by bit; so do copies."""
        encoding, points = self.made(2), self.points(2, 31, dtype=torch.float32)
        options = json.loads(json.dumps(encoding.options()))
        rebuilt = type(encoding)(encoding.num_heads, encoding.dims, **options)
        rebuilt.load_state_dict(encoding.state_dict())
        for other in (rebuilt, copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
            assert torch.equal(other(points), encoding(points))
            assert repr(other) == repr(encoding)

    @pytest.mark.parametrize("shape", [(3,), (5, 1)])
    def test_displacements_of_other_dimension_are_refused(self, shape: tuple[int, ...]) -> None:
        encoding = self.made(2)
        for ask in (encoding, encoding.features) if encoding.feature_width else (encoding,):
            with pytest.raises(ShapeError, match=r"displacement must be of shape \(…, 2\)"):
                ask(torch.zeros(shape))

    @pytest.mark.parametrize("dims", [1, 3])
    def test_grids_of_other_dimension_are_refused(self, dims: int) -> None:
        encoding, asks = self.made(2), []
        if isinstance(encoding, AxisAdditiveEncoding):
            asks = [encoding.axis_tables, encoding.axis_features] if encoding.feature_width else [encoding.axis_tables]
        for ask in (encoding.table, *asks):
            with pytest.raises(ShapeError, match=rf"len\(axes\) must be 2, but is {dims}"):
                ask(self.axes(dims))

    @pytest.mark.parametrize("value", [torch.inf, torch.nan])
    def test_displacements_that_are_not_finite_are_refused(self, value: float) -> None:
        with pytest.raises(ArgumentError, match="displacement must be finite"):
            self.made(2)(torch.full((3, 2), value))

    def axes(self, dims: int) -> list[Axis]:
        """Lays out a small grid, strided along the last axis, within reach."""
        return [Axis(range(4), 5), Axis(range(1, 3), 3), Axis(range(0, 4, 3), 4)][-dims:]

    def _formula(self, encoding: Encoding, displacement: Tensor) -> Tensor:
        flat = self.formula.score(copy.deepcopy(encoding).double(), displacement.double().flatten(0, -2))
        return flat.unflatten(1, displacement.shape[:-1])

    def _check_scores(self, encoding: Encoding, points: Tensor) -> None:
        lows = _by_formula(self.formula.score, encoding, points)
        assert_within_budget(encoding(points), self._formula(encoding, points), lows)

    def _check_table(self, encoding: Encoding, axes: list[Axis], table: Tensor) -> None:
        points = _points(axes).float()
        lows = _by_formula(self.formula.score, encoding, points)
        hi = self._formula(encoding, points).view_as(table)
        assert_within_budget(table, hi, [low.view_as(table) for low in lows])


def _by_formula(
    formula: Callable[[Encoding, Tensor], Tensor], encoding: Encoding, points: Float[Tensor, "points dims"]
) -> list[Tensor]:
    """Computes a formula from several last digits of points and parameters, which are those of the points' dtype."""
    return roundings(formula, copy.deepcopy(encoding).to(points.dtype), points)


def _points(axes: list[Axis]) -> Tensor:
    """Lists the displacements of a grid, (points, dims)."""
    return torch.cartesian_prod(*(axis.displacements() for axis in axes)).view(-1, len(axes))


def _indices(axes: list[Axis]) -> Tensor:
    """Lists, for each axis, where the points of `_points` stand in its table, (dims, points)."""
    return torch.cartesian_prod(*(torch.arange(len(axis.displacements())) for axis in axes)).view(-1, len(axes)).mT


def stir(module: M) -> M:
    """Moves every parameter of a module by random numbers, so that none is zero or the same for all heads."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module
