"""What every encoding promises, as a test class to inherit.

A subclass supplies `create` and the formula of its encoding; pytest then collects every test for it. Comparisons are by
the error budget (`convattn.budget`).
"""

import copy
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from convattn.budget import assert_within_budget, roundings
from convattn.encodings import AxisAdditiveEncoding, Encoding
from convattn.errors import ArgumentError
from convattn.grid import Axis
from convattn.layers import RelativeAttention1d

__all__ = ["EncodingContract", "Formula", "stir"]

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Formula:
    """An encoding's equations, written independently of the encoding; it holds the parameters only.

    Attributes:
        score: (encoding, displacements (points, dims)) → scores (heads, points), in the displacements' dtype.
        features: (encoding, displacements (points, dims)) → features (points, width); None where there are none.
    """

    score: Callable[[Encoding, Tensor], Tensor]
    features: Callable[[Encoding, Tensor], Tensor] | None = None


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

    def drawn(self, dims: int, num_heads: int = 3) -> Encoding:
        """Makes an encoding with random parameters, the same each time."""
        torch.manual_seed(dims)
        return stir(self.create(num_heads, dims))

    def points(self, dims: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Draws real displacements within reach."""
        generator = torch.Generator().manual_seed(7)
        uniform = torch.rand(*shape, dims, generator=generator, dtype=torch.float64)
        return ((2 * uniform - 1) * self.reach).to(dtype)

    def axes(self, dims: int) -> list[Axis]:
        """Lays out a small grid, strided along the last axis, within reach."""
        return [Axis(range(4), 5), Axis(range(1, 3), 3), Axis(range(0, 4, 3), 4)][-dims:]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_scores_are_the_formula(self, dims: int, dtype: torch.dtype) -> None:
        self.check_scores(self.drawn(dims), self.points(dims, 31, dtype=dtype))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_narrow_parameters_are_scored_in_the_dtype_of_the_displacements(
        self, dtype: torch.dtype
    ) -> None:
        """A half-precision encoding loses nothing beyond the rounding of its parameters."""
        self.check_scores(self.drawn(2).to(dtype), self.points(2, 31, dtype=torch.float32))

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_tables_hold_the_scores_of_a_grid(self, dims: int) -> None:
        """The table of a grid lists its scores, and of axis-additive encodings the tables of the axes add up to it."""
        encoding, axes = self.drawn(dims), self.axes(dims)
        self.check_table(encoding, axes, encoding.table(axes))
        assert encoding.axis_additive == isinstance(encoding, AxisAdditiveEncoding)
        if isinstance(encoding, AxisAdditiveEncoding):
            self.check_table(encoding, axes, add_tables(encoding.axis_tables(axes)))

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_scores_are_linear_in_the_features(self, dims: int) -> None:
        """Up to a constant per head, which the softmax cancels, scores lie in the span of the features."""
        encoding = self.drawn(dims).double()
        points = self.points(dims, 4 * max(1, encoding.feature_width) + 1)
        if not encoding.feature_width:
            message = "encoding must be one with features shared by all heads"
            with pytest.raises(ArgumentError, match=message):
                encoding.features(points)
            return
        features, scores = encoding.features(points).detach(), encoding(points).detach().mT
        assert features.shape == (len(points), encoding.feature_width)
        formula = self.formula.features
        assert formula is not None
        with torch.no_grad():
            lows = by_formula(formula, encoding, points)
        assert_within_budget(features, lows[0], lows)
        basis, _ = torch.linalg.qr(torch.cat([features, torch.ones_like(points[:, :1])], dim=1))
        rest = scores - basis @ (basis.mT @ scores)
        rounding = len(points) * torch.finfo(torch.float64).eps
        assert rest.abs().max() <= rounding * max(1.0, scores.norm().item())

    @pytest.mark.parametrize("dims", [1, 2])
    def test_gradients_are_those_of_finite_differences(self, dims: int) -> None:
        encoding = self.drawn(dims, num_heads=2).double()
        parameters = dict(encoding.named_parameters())

        def scores(displacement: Tensor, *values: Tensor) -> Tensor:
            named = dict(zip(parameters, values, strict=True))
            return functional_call(encoding, named, (displacement,))

        inputs = (self.points(dims, 3), *parameters.values())
        leaves = [value.detach().requires_grad_() for value in inputs]
        assert torch.autograd.gradcheck(scores, leaves)

    def test_rebuilds_from_its_class_and_options(self) -> None:
        """Class, sizes, options and state give an encoding with the same scores, bit by bit; so do copies."""
        encoding, points = self.drawn(2), self.points(2, 31, dtype=torch.float32)
        options = json.loads(json.dumps(encoding.options()))
        rebuilt = type(encoding)(encoding.num_heads, encoding.dims, **options)
        rebuilt.load_state_dict(encoding.state_dict())
        for other in (rebuilt, copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
            assert torch.equal(other(points), encoding(points))
            assert repr(other) == repr(encoding)

    def test_a_layer_attends_by_the_formula(self) -> None:
        """A layer computes y[q] = b + Σ_h W_h Σ_k A_h[q, k] x[k], with A the softmax of the formula's scores."""
        encoding, x = (
            self.drawn(1),
            torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(5)),
        )
        layer = RelativeAttention1d(3, 7, encoding.num_heads, encoding)

        def attend(layer: RelativeAttention1d, x: Tensor) -> Tensor:
            places = torch.arange(x.shape[2], dtype=x.dtype)
            pairs = (places - places[:, None]).flatten()[:, None]
            scores = self.formula.score(layer.encoding, pairs)
            weights = scores.view(-1, len(places), len(places)).softmax(-1)
            y = torch.einsum("hoc,hqk,bck->boq", layer.values.maps(), weights, x)
            return y + layer.get_parameter("bias")[:, None]

        hi = attend(copy.deepcopy(layer).double(), x.double())
        assert_within_budget(layer(x), hi, roundings(attend, layer, x))

    def check_scores(self, encoding: Encoding, points: Tensor) -> None:
        """Compares the scores of displacements with the formula."""
        lows = by_formula(self.formula.score, encoding, points)
        precise = copy.deepcopy(encoding).double()
        hi = self.formula.score(precise, points.double())
        assert_within_budget(encoding(points), hi, lows)

    def check_table(self, encoding: Encoding, axes: list[Axis], table: Tensor) -> None:
        """Compares the scores of all displacements of a grid, from the lowest to the highest, with the formula."""
        sizes = [len(axis.displacements()) for axis in axes]
        assert table.shape == (encoding.num_heads, *sizes)
        points = grid_points(axes).float()
        lows = by_formula(self.formula.score, encoding, points)
        hi = self.formula.score(copy.deepcopy(encoding).double(), points.double())
        assert_within_budget(table.flatten(1), hi, lows)


def by_formula(
    formula: Callable[[Encoding, Tensor], Tensor],
    encoding: Encoding,
    points: Float[Tensor, "points dims"],
) -> list[Tensor]:
    """Computes a formula from several last digits of points and parameters, which are those of the points' dtype."""
    return roundings(formula, copy.deepcopy(encoding).to(points.dtype), points)


def grid_points(axes: list[Axis]) -> Tensor:
    """Lists the displacements of a grid, (points, dims)."""
    along = [axis.displacements() for axis in axes]
    return torch.cartesian_prod(*along).view(-1, len(axes))


def add_tables(tables: Sequence[Float[Tensor, "heads _"]]) -> Float[Tensor, "heads *displacements"]:
    """Adds up tables of the axes to one of the grid."""
    total = tables[0]
    for table in tables[1:]:
        total = total[..., None] + table.view(len(table), *(1,) * (total.ndim - 1), -1)
    return total


def stir(module: M) -> M:
    """Moves every parameter of a module by random numbers, so that none is zero or the same for all heads."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module
