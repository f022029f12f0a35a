"""Long sequences in bands, held against the definition."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from tests.functional.test_paths import ROADS, Case, gradients, numbers, reference, whole
from torch import nn

from convattn.budget import assert_within_budget, roundings
from convattn.functional import (
    attend,
    attention_weights,
    displacement_scores,
)
from convattn.functional.bands import MOST_TAPS, band_attention, find_bands
from convattn.grid import Axis


def quadratic(*heads):
    """Scores −α(δ − Δ)² of heads (Δ, α)."""
    centres, sharpness = (
        torch.tensor(column, dtype=torch.float64)[:, None] for column in zip(*heads, strict=True)
    )
    return lambda delta: -sharpness * (delta - centres) ** 2


def linear(delta):
    centres, slopes = torch.tensor([[0.0], [3.0], [-40.0]]), torch.tensor([[2.0], [1.0], [7.0]])
    return -slopes * (delta - centres).abs()


def random_peak(delta):
    """A learned table: random scores at forty displacements, and nothing like them elsewhere."""
    near = (delta >= -11) & (delta < 29)
    return torch.where(
        near, 9 * numbers(3, len(delta), seed=5), -80.0 + numbers(3, len(delta), seed=6)
    )


def causal(delta):
    """Scores of minus infinity at the keys ahead."""
    slopes = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    return torch.where(delta > 0, -torch.inf, slopes * delta)


SOFT = quadratic((-4.0, 1.0), (-0.5, 3.0), (0.0, 1.0), (2.5, 0.9), (4.0, 1.0))
LINE = whole(211)


@dataclass(frozen=True)
class Line(Case):
    """A case of one axis, with a function that scores displacements."""

    scores: Callable = SOFT


CASES = [
    Line("neighbours", LINE),
    Line("hard", LINE, scores=quadratic((-2, 800.0), (0, 800.0), (3, 800.0))),
    Line("far apart", LINE, batch=3, scores=quadratic((0, 1.0), (60, 2.0), (-70, 1.0))),
    Line(
        "beyond the ends",
        LINE,
        scores=quadratic((0, 1.0), (230, 1.0), (-220, 800.0), (105.5, 0.7)),
    ),
    Line(
        "narrow and wide",
        whole(503),
        channels=23,
        outputs=19,
        scores=quadratic((0, 9.0), (1, 0.02), (2, 0.03)),
    ),
    Line("strided, not from the first key", (Axis(range(5, 213, 3), 219),)),
    Line(
        "blocks strided",
        (Axis(range(0, 503, 2), 503),),
        batch=1,
        channels=29,
        outputs=7,
        scores=quadratic((0, 0.03), (5, 0.03)),
    ),
    Line("groups", LINE, channels=6, outputs=10, groups=2),
    Line("depthwise", LINE, channels=7, outputs=7, groups=7),
    Line("linear", LINE, scores=linear),
    Line("random table", LINE, scores=random_peak),
    Line("causal", LINE, scores=causal),
    Line("no image", LINE, batch=0),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def inputs(case, dtype):
    """Key images, W_h and the table of scores."""
    (axis,) = case.axes
    table = case.scores(axis.displacements().double()).to(dtype)
    keys = numbers(case.batch, case.channels, axis.keys).to(dtype)
    maps = numbers(len(table), case.outputs, case.channels // case.groups, seed=1).to(dtype)
    return [keys, maps, table]


def in_bands(case, keys, maps, table):
    (axis,) = case.axes
    bands = find_bands(table, axis, keys.dtype)
    assert bands is not None
    return band_attention(bands, axis, keys, maps, case.groups)


def one_kernel(case, keys, maps, table):
    """The definition with one convolution for queries that see all of a head: gradients are summed earlier."""
    (axis,) = case.axes
    weights = attention_weights(displacement_scores(table, (axis,)))
    queries, inside_too = torch.tensor(list(axis.queries)), 0.0
    for head, (low, high) in enumerate(displacements_that_matter(table, axis, keys.dtype)):
        shared = attention_weights(table[:, low - axis.lowest : high - axis.lowest + 1])[head]
        inside = (queries + low >= 0) & (queries + high < axis.keys)
        ours = torch.arange(len(maps))[:, None] == head
        weights = weights.masked_fill((ours & inside)[..., None], 0.0)
        kernel = torch.einsum("t,oc->oct", shared, maps[head])
        margin = abs(low) + abs(
            high
        )  # zeros around: they are seen from queries that are not inside
        seen = nn.functional.pad(keys, (margin, margin))[..., margin + axis.queries[0] + low :]
        for first, piece in enumerate(kernel.split(MOST_TAPS, -1)):
            window = seen[..., first * MOST_TAPS :]
            y = nn.functional.conv1d(window, piece, stride=axis.queries.step, groups=case.groups)
            inside_too = inside_too + y[..., : len(queries)] * inside
    return attend(weights, keys, maps, case.groups) + inside_too


def displacements_that_matter(table, axis, dtype):
    """The lowest and the highest of each head; the weights of all others are below the rounding of one."""
    fall = math.log(axis.keys * 64 / torch.finfo(dtype).eps)
    for scores in table.detach():
        places = (scores >= scores.max() - fall).nonzero().flatten().tolist()
        yield axis.lowest + places[0], axis.lowest + places[-1]


ALL_ROADS = (*ROADS, one_kernel)


def lows(case, values, compute=lambda road, case, values: road(case, *values), roads=ROADS):
    """What `compute` makes of each road, and of the definition from several last digits."""
    rounded = roundings(lambda *given: compute(reference, case, given), *values)
    return [compute(road, case, values) for road in roads] + rounded


@every_case
def test_output_in_float64_is_that_of_the_definition(case):
    values = inputs(case, torch.float64)
    hi = reference(case, *values)
    assert_within_budget(in_bands(case, *values), hi, lows(case, values))


@every_case
def test_output_and_gradients_are_those_of_the_definition(case):
    values = inputs(case, torch.float32)
    y, *found = gradients(in_bands, case, values)
    exact, *hi = gradients(reference, case, [value.double() for value in values])
    assert_within_budget(y, exact, lows(case, values))
    roads = zip(*lows(case, values, gradients, ALL_ROADS), strict=True)
    for name, result, right, several in zip(
        ["keys", "maps", "scores"], found, hi, list(roads)[1:], strict=True
    ):
        assert_within_budget(result, right, several, f"gradient of {name}")


@pytest.mark.parametrize("fault", ["left out", "moved", "border", "found"])
@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=lambda case: case.name)
def test_a_planted_fault_is_noticed(case, fault, monkeypatch):
    """Negative control: some keys of little weight too few, scores moved by one key, a border or bands too short."""
    if fault == "found":
        monkeypatch.setattr(sys.modules[find_bands.__module__], "_NEGLIGIBLE", 2.0**26)
    values = inputs(case, torch.float64)
    bands = find_bands(values[2], *case.axes, torch.float64)
    part = bands.parts[0]
    less = part.taps // 3
    short = part._replace(high=part.high - less, after=(part.after[0] - less, part.after[1]))
    border = part._replace(before=(part.before[0], part.before[1] - less))
    wrong = {
        "left out": bands._replace(parts=(short, *bands.parts[1:])),
        "moved": bands._replace(scores=bands.scores.roll(1, -1)),
        "border": bands._replace(parts=(border, *bands.parts[1:])),
        "found": bands,
    }[fault]
    hi = reference(case, *values)
    y = band_attention(wrong, *case.axes, *values[:2])
    with pytest.raises(AssertionError, match="result: error"):
        assert_within_budget(y, hi, lows(case, values))


def test_second_derivatives_are_those_of_the_definition():
    scores = quadratic((-1.0, 1.0), (1.5, 2.0))
    case = Line("small", whole(61), batch=1, channels=2, outputs=2, scores=scores)
    values = inputs(case, torch.float64)

    def second(compute, case, values):
        leaves = [value.detach().requires_grad_() for value in values]
        first = torch.autograd.grad(compute(case, *leaves).pow(3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)

    hi, several = second(reference, case, values), lows(case, values, second, ALL_ROADS)
    for result, exact, *roads in zip(second(in_bands, case, values), hi, *several, strict=True):
        assert_within_budget(result, exact, roads)


def test_what_is_left_out_is_less_than_was_promised():
    """Per query, over all heads of every case: attention at keys that are in no band."""
    for case in CASES:
        *_, table = inputs(case, torch.float32)
        (axis,) = case.axes
        bands = find_bands(table, axis, torch.float32)
        assert bands.leak == torch.finfo(torch.float32).eps / 64
        weights = attention_weights(displacement_scores(table.double(), (axis,)))
        queries, keys = torch.tensor(list(axis.queries))[:, None], torch.arange(axis.keys)
        for band in bands.parts:
            held = (keys - queries >= band.low) & (keys - queries <= band.high)
            held[: band.before[0]] = keys < band.before[1]
            held[len(queries) - band.after[0] :] = keys >= axis.keys - band.after[1]
            left_out = (weights[list(band.heads)] * ~held).sum(-1).max()
            assert left_out <= bands.leak, case.name


@pytest.mark.parametrize(
    "scores",
    [
        quadratic((0, 1e-4)),
        lambda delta: numbers(1, len(delta)),
        lambda delta: torch.full((1, len(delta)), torch.nan),
        lambda delta: torch.where(delta > -3, -torch.inf, delta)[None],
        lambda delta: torch.where(delta == 5, 0.0, -50.0)[None],
    ],
    ids=["flat", "random", "nan", "no key is seen first", "wide at the end"],
)
def test_other_heads_are_no_band(scores):
    axis = Axis(range(211), 211)
    assert find_bands(scores(axis.displacements().double()), axis, torch.float32) is None


def test_bfloat16_is_summed_before_it_is_rounded():
    case = CASES[0]
    values = [value.bfloat16() for value in inputs(case, torch.float64)]
    bands = find_bands(values[2].float(), *case.axes, torch.bfloat16)
    y = band_attention(bands, *case.axes, *values[:2])
    hi = reference(case, *(value.double() for value in values))
    precise = roundings(partial(reference, case), *(value.float() for value in values))
    assert_within_budget(y, hi, [low.bfloat16() for low in precise])


def test_under_autocast_keys_and_maps_are_rounded_first():
    case = CASES[0]
    keys, maps, table = inputs(case, torch.float32)
    bands = find_bands(table, *case.axes, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = band_attention(bands, *case.axes, keys, maps)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, band_attention(bands, *case.axes, keys.bfloat16(), maps.bfloat16()))
    assert not torch.equal(y.float(), band_attention(bands, *case.axes, keys, maps))
