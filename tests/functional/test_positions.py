"""Channels whose inner product is the score of a displacement, and the bound of those whose terms cancel."""

import pytest
import torch
from tests.encodings.formula_cases import small_encoding
from tests.layers.layer_cases import ADDITIVE

from convattn.budget import assert_within_budget, roundings
from convattn.encodings import AxisAdditiveEncoding, Quadratic, Shift
from convattn.errors import ArgumentError, ShapeError
from convattn.functional import (
    displacement_scores,
    position_channels,
    quadratic_channels,
    quadratic_error,
)
from convattn.functional.positions import second_degree, second_degree_error
from convattn.grid import Axis

GRIDS = {
    "a sequence": (Axis(range(11), 11),),
    "an image": (Axis(range(5), 5), Axis(range(7), 7)),
    "strides and padding": (Axis(range(1, 8, 2), 9), Axis(range(2, 5), 7)),
    "a volume": (Axis(range(2), 2), Axis(range(0, 3, 2), 3), Axis(range(5), 5)),
}


def product(query, key):
    return query @ key.mT


def of_places(encoding, axes, dtype):
    return displacement_scores(encoding.table(axes, dtype), axes)


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("axes", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_inner_product_is_the_score(name, axes, dtype):
    encoding = small_encoding(name, 3, len(axes)).to(dtype)
    query, key = position_channels(encoding, axes, dtype)
    assert query.shape[-1] == key.shape[-1] == sum(axis.keys for axis in axes)
    hi = of_places(encoding.double(), axes, torch.float64).detach()

    def by_table(module):
        return of_places(module, axes, dtype).detach()

    lows = roundings(by_table, encoding.to(dtype))
    assert_within_budget(product(query, key).detach(), hi, lows)


def test_other_scores_take_a_channel_for_every_key():
    encoding = small_encoding("learned_table", 3, 2)
    axes = GRIDS["strides and padding"]
    query, key = position_channels(encoding, axes)
    assert torch.equal(product(query, key), of_places(encoding, axes, torch.float32))


def test_tokens_without_a_place_come_first_and_score_nothing():
    channels = position_channels(small_encoding("quadratic", 3, 2), (5, 7))
    query, key = channels.append(torch.zeros(2, 3, 37, 4), torch.zeros(2, 3, 37, 4))
    scores = product(query, key)
    assert not scores[:, :, :2].any()
    assert not scores[..., :2].any()
    assert torch.equal(scores[1, :, 2:, 2:], product(*channels))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_few_digits_come_twice(dtype):
    """The rest of a number rounded to d digits has d more: products are right to about 2d digits."""
    encoding = small_encoding("learned_axial", 3, 2)
    axes = GRIDS["an image"]
    query, key = position_channels(encoding, axes, dtype)
    assert query.dtype is key.dtype is dtype
    exact = of_places(encoding, axes, torch.float32)
    error = (product(query.float(), key.float()) - exact).abs().max()
    # a half of the last digit of the rest, on each axis; subnormal rests lose more
    info = torch.finfo(dtype)
    assert error <= 2 * exact.abs().max() * info.eps**2 + 2 * info.smallest_normal * info.eps
    (once,) = (query[..., : query.shape[-1] // 2],)
    assert (product(once.float(), key[:, : once.shape[-1]].float()) - exact).abs().max() > error


def test_the_queries_are_divided_by_the_scale():
    encoding = small_encoding("quadratic", 3, 2)
    whole, _ = position_channels(encoding, (5, 7))
    scaled, _ = position_channels(encoding, (5, 7), scale=0.25)
    assert torch.equal(scaled * 0.25, whole)


class Window(AxisAdditiveEncoding):
    """Score 0 within one pixel, −∞ beyond."""

    def axis_scores(self, displacement):
        scores = torch.where(displacement.abs() <= 1, 0.0, -torch.inf)
        return scores.to(displacement.dtype).expand(self.num_heads, *displacement.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_key_that_is_excluded_gets_no_weight_and_no_nan(dtype):
    query, key = position_channels(Window(2, 2), (5, 7), dtype)
    weights = torch.softmax(product(query.float(), key.float()), -1)
    expected = torch.softmax(of_places(Window(2, 2), GRIDS["an image"], torch.float32), -1)
    assert torch.equal(weights > 0, expected > 0)


@pytest.mark.parametrize("scale", [1.0, 32**-0.5])
def test_a_head_that_looks_beyond_the_grid_looks_at_its_edge_in_few_digits_too(scale):
    """Its scores are beyond the range of float16."""
    query, key = position_channels(
        Shift(1, 1, displacements=[[20]]), (14,), torch.float16, scale=scale
    )
    weights = torch.softmax(scale * product(query.float(), key.float()), -1)
    assert weights.argmax(-1).tolist() == [[13] * 14]
    assert (weights.amax(-1) == 1).all()


@pytest.mark.parametrize("build", [position_channels, quadratic_channels])
def test_sizes_that_are_no_list_are_refused(build, without_type_checks):
    with pytest.raises(ArgumentError, match=r"^axes must be numbers of pixels along each axis"):
        build(small_encoding("quadratic", 3, 1), 7)


def test_scores_of_another_degree_are_refused(without_type_checks):
    with pytest.raises(ArgumentError, match=r"^encoding must be a Quadratic"):
        quadratic_channels(Shift(1, 1, displacements=[[0]]), (5,))


def test_the_inner_product_trains_the_encoding():
    encoding, axes = small_encoding("learned_axial", 3, 2).double(), GRIDS["an image"]
    channels = position_channels(encoding, axes, torch.float64)
    gradients = []
    for scores in (product(*channels), of_places(encoding, axes, torch.float64)):
        y = scores.softmax(-1).square().sum()
        gradients.append(torch.autograd.grad(y, encoding.parameters()))
    for actual, expected in zip(*gradients, strict=True):
        largest = expected.abs().max()
        assert largest > 0
        assert (actual - expected).abs().max() <= 1000 * torch.finfo(torch.float64).eps * largest


def test_a_grid_of_other_axes_is_refused():
    for compute in (position_channels, quadratic_channels, quadratic_error):
        with pytest.raises(ShapeError, match=r"len\(axes\) must be 2"):
            compute(Quadratic(3, 2), (5,))


@pytest.mark.parametrize("size", [0, -3])
def test_pixels_that_are_no_number_are_refused(size):
    for compute in (position_channels, quadratic_channels, quadratic_error):
        with pytest.raises(ArgumentError, match="axes must be an integer of at least 1"):
            compute(Quadratic(3, 2), (5, size))


def moved_attention(encoding, axes):
    """Measures the largest share of a query's attention that rounding moves, by head."""
    query, key = quadratic_channels(encoding, axes)
    found = torch.softmax(product(query, key).double(), -1)
    exact = torch.softmax(of_places(encoding.double(), axes, torch.float64), -1)
    return (found - exact).abs().sum(-1).amax(-1) / 2


@torch.no_grad()
def test_the_error_of_quadratic_channels_is_within_its_bound():
    """3,000 heads of random α, Δ and sizes; the bound is no idle one, either."""
    generator = torch.Generator().manual_seed(0)
    ratios = []
    for number in range(30):
        dims = 1 + number % 3
        most = (60, 14, 5)[dims - 1]
        sizes = torch.randint(2, most, (dims,), generator=generator).tolist()
        axes = tuple(Axis(range(size), size) for size in sizes)
        encoding = Quadratic(100, dims)
        encoding.root_sharpness.copy_(10 ** (2 * torch.rand(100, generator=generator) - 1))
        encoding.centres.copy_(most * torch.randn(100, dims, generator=generator) / 4)
        square, linear = second_degree(encoding, torch.float64)
        bounds = []
        for head in range(100):
            own = slice(head, head + 1)
            bound = second_degree_error(
                square[own].abs(), linear[own].abs(), axes, torch.float32, 0
            )
            bounds.append(bound)
        bound = torch.tensor(bounds, dtype=torch.float64)
        assert quadratic_error(encoding, axes) == bound.max()
        moved = moved_attention(encoding, axes)
        assert (moved <= bound).all()
        ratios.append(bound / moved.clamp(min=1e-30))
    assert torch.cat(ratios).median() <= 30


def test_a_bound_of_fewer_roundings_would_be_too_small():
    """Negative control: channels in bfloat16 are beyond the bound of float32."""
    encoding, axes = Quadratic(9, 2, sharpness=3.0), GRIDS["an image"]
    query, key = quadratic_channels(encoding, axes, torch.bfloat16)
    found = torch.softmax(product(query.double(), key.double()), -1)
    exact = torch.softmax(of_places(encoding.double(), axes, torch.float64), -1)
    moved = (found - exact).abs().sum(-1).max() / 2
    assert (
        quadratic_error(encoding.float(), axes)
        < moved
        <= quadratic_error(encoding.float(), axes, torch.bfloat16)
    )


def test_fewer_tokens_than_places_are_refused():
    tokens = torch.randn(1, 2, 34, 3)
    with pytest.raises(ShapeError, match="tokens must be at least 35, the number of places"):
        position_channels(Quadratic(2, 2), (5, 7)).append(tokens, tokens)
