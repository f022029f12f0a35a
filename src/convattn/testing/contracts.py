"""What every encoding promises, as a test class to inherit.

A subclass supplies `create` and the formula of its encoding; pytest then collects every test for it. Comparisons are by
the error budget (`convattn.budget`).
"""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from convattn.budget import assert_within_budget, references, roundings
from convattn.encodings import AxisAdditiveEncoding, Encoding
from convattn.errors import ArgumentError
from convattn.grid import Axis
from convattn.layers import (
    RelativeAttention,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)

__all__ = ["EncodingContract", "Formula", "stir"]

M = TypeVar("M", bound=nn.Module)

_LAYERS = {1: RelativeAttention1d, 2: RelativeAttention2d, 3: RelativeAttention3d}


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
        reach: Largest absolute displacement that the encodings made by `create` hold, at least 4.
        dims: Numbers of axes for which `create` makes one. Tests of other numbers are skipped; what is tested once, as
            in a layer, is tested with the first.
    """

    formula: Formula
    reach: int = 6
    dims: tuple[int, ...] = (2, 1, 3)

    def create(self, num_heads: int, dims: int) -> Encoding:
        """Makes an encoding.

        Args:
            num_heads: Number of heads.
            dims: Number of axes.
        """
        raise NotImplementedError

    def drawn(self, dims: int, num_heads: int = 3) -> Encoding:
        """Makes an encoding with random parameters, the same each time; skips the test if it has other axes."""
        if dims not in self.dims:
            pytest.skip(f"{type(self).__name__} has encodings of {self.dims} axes")
        torch.manual_seed(dims)
        return stir(self.create(num_heads, dims))

    def points(self, dims: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Draws real displacements within reach."""
        generator = torch.Generator().manual_seed(7)
        uniform = torch.rand(*shape, dims, generator=generator, dtype=torch.float64)
        points = (2 * uniform - 1) * self.reach
        return points.to(dtype)

    def axes(self, dims: int) -> list[Axis]:
        """Lays out a small grid, strided along the last axis, within reach."""
        axes = [
            Axis(range(4), 5),
            Axis(range(1, 3), 3),
            Axis(range(0, 4, 3), 4),
        ]
        return axes[-dims:]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_scores_are_the_formula(self, dims: int, dtype: torch.dtype) -> None:
        points = self.points(dims, 31, dtype=dtype)
        encoding = self.drawn(dims)
        self.check_scores(encoding, points, encoding(points))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_narrow_parameters_are_scored_in_the_dtype_of_the_displacements(
        self, dtype: torch.dtype
    ) -> None:
        """A half-precision encoding loses nothing beyond the rounding of its parameters."""
        dims = self.dims[0]
        encoding = self.drawn(dims).to(dtype)
        points = self.points(dims, 31, dtype=torch.float32)
        self.check_scores(encoding, points, encoding(points))

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_tables_hold_the_scores_of_a_grid(self, dims: int) -> None:
        """The table of a grid lists its scores, and of axis-additive encodings the tables of the axes add up to it."""
        encoding = self.drawn(dims)
        axes = self.axes(dims)
        self.check_table(encoding, axes, encoding.table(axes))
        if isinstance(encoding, AxisAdditiveEncoding):
            grids = []
            for tables in zip(*encoding.axis_tables(axes), strict=True):  # of a head
                along_axes = torch.meshgrid(*tables, indexing="ij")
                grids.append(torch.stack(along_axes).sum(0))
            self.check_table(encoding, axes, torch.stack(grids))

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_scores_are_linear_in_the_features(self, dims: int) -> None:
        """Up to a constant per head, which the softmax cancels, scores lie in the span of the features."""
        encoding = self.drawn(dims).double()
        width = encoding.feature_width
        points = self.points(dims, 4 * max(1, width) + 1)
        if not width:
            message = "encoding must be one with features shared by all heads"
            with pytest.raises(ArgumentError, match=message):
                encoding.features(points)
            return
        features = encoding.features(points).detach()
        assert features.shape == (len(points), width)
        formula = self.formula.features
        assert formula is not None
        with torch.no_grad():
            lows = by_formula(formula, encoding, points)
        assert_within_budget(features, lows[0], lows)
        constant = torch.ones(len(points), 1, dtype=torch.float64)
        basis, _ = torch.linalg.qr(torch.cat([features, constant], dim=1))
        scores = encoding(points).detach().mT
        projected = basis @ (basis.mT @ scores)
        rounding = len(points) * torch.finfo(torch.float64).eps
        largest = max(1.0, scores.norm().item())
        assert (scores - projected).abs().max() <= rounding * largest

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_gradients_are_those_of_finite_differences(self, dims: int) -> None:
        encoding = self.drawn(dims, num_heads=2).double()
        parameters = dict(encoding.named_parameters())

        def scores(displacement: Tensor, *values: Tensor) -> Tensor:
            named = dict(zip(parameters, values, strict=True))
            return functional_call(encoding, named, (displacement,))

        copies = [parameter.detach().requires_grad_() for parameter in parameters.values()]
        leaves = [self.points(dims, 3).requires_grad_(), *copies]
        assert torch.autograd.gradcheck(scores, leaves)

    def test_rebuilds_from_its_class_and_options(self) -> None:
        """Class, sizes, options and state give an encoding with the same scores, bit by bit; so do copies."""
        dims = self.dims[0]
        encoding = self.drawn(dims)
        points = self.points(dims, 31, dtype=torch.float32)
        options = json.loads(json.dumps(encoding.options()))
        rebuilt = type(encoding)(encoding.num_heads, encoding.dims, **options)
        rebuilt.load_state_dict(encoding.state_dict())
        copied = copy.deepcopy(encoding)
        unpickled = pickle.loads(pickle.dumps(encoding))
        for other in (rebuilt, copied, unpickled):
            assert torch.equal(other(points), encoding(points))
            assert repr(other) == repr(encoding)

    def test_a_layer_attends_by_the_formula(self) -> None:
        """A layer computes y[q] = b + Σ_h W_h Σ_k A_h[q, k] x[k], with A the softmax of the formula's scores."""
        dims = self.dims[0]
        encoding = self.drawn(dims)
        sizes = (5, 3, 2)[:dims]
        x = torch.randn(2, 3, *sizes, generator=torch.Generator().manual_seed(5))
        layer = _LAYERS[dims](3, 7, encoding=encoding)

        def attend(layer: RelativeAttention, x: Tensor) -> Tensor:
            along = [torch.arange(size, dtype=x.dtype) for size in sizes]
            places = torch.cartesian_prod(*along).view(-1, dims)
            displacements = places - places[:, None]
            scores = self.formula.score(layer.encoding, displacements.flatten(0, 1))
            weights = scores.view(-1, *displacements.shape[:2]).softmax(-1)
            maps = layer.values.maps()
            y = torch.einsum("hoc,hqk,bck->boq", maps, weights, x.flatten(2))
            bias = layer.get_parameter("bias")
            return (y + bias[:, None]).unflatten(2, sizes)

        hi, lows = references(attend, layer, x)
        assert_within_budget(layer(x), hi, lows)

    def check_scores(self, encoding: Encoding, points: Tensor, scores: Tensor) -> None:
        """Compares the scores of displacements with the formula."""
        lows = by_formula(self.formula.score, encoding, points)
        precise = copy.deepcopy(encoding).double()
        hi = self.formula.score(precise, points.double())
        assert_within_budget(scores, hi, lows)

    def check_table(self, encoding: Encoding, axes: list[Axis], table: Tensor) -> None:
        """Compares the scores of all displacements of a grid, from the lowest to the highest, with the formula."""
        sizes = [len(axis.displacements()) for axis in axes]
        assert table.shape == (encoding.num_heads, *sizes)
        points = grid_points(axes).float()
        self.check_scores(encoding, points, table.flatten(1))


def by_formula(
    formula: Callable[[Encoding, Tensor], Tensor],
    encoding: Encoding,
    points: Float[Tensor, "points dims"],
) -> list[Tensor]:
    """Computes a formula from several last digits of points and parameters, which are those of the points' dtype."""
    rounded = copy.deepcopy(encoding).to(points.dtype)
    return roundings(formula, rounded, points)


def grid_points(axes: list[Axis]) -> Tensor:
    """Lists the displacements of a grid, (points, dims)."""
    along = [axis.displacements() for axis in axes]
    return torch.cartesian_prod(*along).view(-1, len(axes))


def stir(module: M) -> M:
    """Moves every parameter of a module by random numbers, so that none is zero or the same for all heads."""
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn_like(parameter)
            parameter.add_(0.3 * noise)
    return module
