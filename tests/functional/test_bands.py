"""Long sequences in bands, held against the definition."""

import math
import sys
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

from convattn.budget import assert_within_budget, roundings
from convattn.functional import (
    attend,
    attention_weights,
    displacement_scores,
    pad_keys,
)
from convattn.functional.bands import MOST_TAPS, band_attention, find_bands
from convattn.functional.reference import combine_heads
from convattn.grid import Axis, Geometry


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


@dataclass(frozen=True)
class Case:
    name: str
    scores: object
    size: int = 211
    batch: int = 2
    channels: int = 3
    outputs: int = 5
    groups: int = 1
    geometry: Geometry = Geometry.parse(1)  # noqa: RUF009 - frozen

    @property
    def axis(self):
        return self.geometry.axes((self.size,))[0]


SOFT = quadratic((-4.0, 1.0), (-0.5, 3.0), (0.0, 1.0), (2.5, 0.9), (4.0, 1.0))
CASES = [
    Case("neighbours", SOFT),
    Case("hard", quadratic((-2, 800.0), (0, 800.0), (3, 800.0))),
    Case("far apart", quadratic((0, 1.0), (60, 2.0), (-70, 1.0)), batch=3),
    Case("beyond the ends", quadratic((0, 1.0), (230, 1.0), (-220, 800.0), (105.5, 0.7))),
    Case(
        "narrow and wide",
        quadratic((0, 9.0), (1, 0.02), (2, 0.03)),
        size=503,
        channels=23,
        outputs=19,
    ),
    Case(
        "strided and padded",
        SOFT,
        geometry=Geometry.parse(1, kernel_size=3, stride=3, padding=4, dilation=5),
    ),
    Case(
        "blocks strided",
        quadratic((0, 0.03), (5, 0.03)),
        503,
        1,
        29,
        7,
        geometry=Geometry.parse(1, stride=2),
    ),
    Case("reflected", SOFT, geometry=Geometry.parse(1, padding=[(7, 2)], padding_mode="reflect")),
    Case("circular", SOFT, geometry=Geometry.parse(1, padding=5, padding_mode="circular")),
    Case(
        "replicated and cropped",
        SOFT,
        geometry=Geometry.parse(1, padding=[(-3, 6)], padding_mode="replicate"),
    ),
    Case("spread", SOFT, size=97, geometry=Geometry.parse(1, input_dilation=2, padding=1)),
    Case("groups", SOFT, channels=6, outputs=10, groups=2),
    Case("depthwise", SOFT, channels=7, outputs=7, groups=7),
    Case("linear", linear),
    Case("random table", random_peak),
    Case("causal", causal),
    Case("no image", SOFT, batch=0),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def inputs(case, dtype):
    """Key images, W_h and the table of scores."""
    table = case.scores(case.axis.displacements().double()).to(dtype)
    keys = pad_keys(numbers(case.batch, case.channels, case.size), case.geometry).to(dtype)
    return [
        keys,
        numbers(len(table), case.outputs, case.channels // case.groups, seed=1).to(dtype),
        table,
    ]


def in_bands(case, keys, maps, table):
    bands = find_bands(table, case.axis, keys.dtype)
    assert bands is not None
    return band_attention(bands, case.axis, keys, maps, case.groups)


def reference(case, keys, maps, table):
    return attend(
        attention_weights(displacement_scores(table, (case.axis,))), keys, maps, case.groups
    )


def matrices_first(case, keys, maps, table):
    weights = attention_weights(displacement_scores(table, (case.axis,)))
    return sum(
        combine_heads(keys[:, None], maps[h, None], case.groups) @ weights[h].mT
        for h in range(len(maps))
    )


def backwards(case, keys, maps, table):
    weights = attention_weights(displacement_scores(table, (case.axis,)))
    return attend(weights.flip(0, -1), keys.flip(-1), maps.flip(0), case.groups)


def one_softmax(case, keys, maps, table, *, kernel=False):
    """The definition with one softmax, or kernel, for queries that see the same: gradients are summed earlier."""
    axis, heads, inside_too = case.axis, torch.arange(len(maps)), 0.0
    weights, shifted = (
        attention_weights(displacement_scores(table, (axis,))),
        axis.index() + axis.lowest,
    )
    rows, queries = torch.arange(len(shifted)), torch.tensor(list(axis.queries))
    for head, (low, high) in enumerate(displacements_that_matter(table, axis, keys.dtype)):
        shared = attention_weights(table[:, low - axis.lowest : high - axis.lowest + 1])[head]
        inside = (queries + low >= 0) & (queries + high < axis.keys)
        ours = (heads == head)[:, None, None] & inside[:, None]
        held = (shifted >= low) & (shifted <= high) & (not kernel)
        weights = torch.where(ours, shared[(shifted - low).clamp(0, high - low)] * held, weights)
        if kernel:
            matrices = torch.einsum("t,oc->toc", shared, maps[head])
            margin = abs(low) + abs(
                high
            )  # torch's own convolutions, zeros around: they see all that is inside
            seen = nn.functional.pad(keys, (margin, margin))[..., margin + axis.queries[0] + low :]
            for first, piece in enumerate(matrices.permute(1, 2, 0).split(MOST_TAPS, -1)):
                window = seen[..., first * MOST_TAPS :]
                y = nn.functional.conv1d(
                    window, piece, stride=axis.queries.step, groups=case.groups
                )
                inside_too = inside_too + y[..., : len(rows)] * inside
    return attend(weights, keys, maps, case.groups) + inside_too


def one_kernel(case, keys, maps, table):
    return one_softmax(case, keys, maps, table, kernel=True)


def displacements_that_matter(table, axis, dtype):
    """The lowest and the highest of each head; the weights of all others are below the rounding of one."""
    fall = math.log(axis.keys * 64 / torch.finfo(dtype).eps)
    for scores in table.detach():
        places = (scores >= scores.max() - fall).nonzero().flatten().tolist()
        yield axis.lowest + places[0], axis.lowest + places[-1]


ROADS = (matrices_first, backwards)
ROADS_OF_GRADIENTS = (*ROADS, one_softmax, one_kernel)


def lows(case, values, compute=lambda road, case, *values: road(case, *values), roads=ROADS):
    """What `compute` makes of each road, and of the definition from several last digits."""
    return [compute(road, case, *values) for road in roads] + roundings(
        partial(compute, reference, case), *values
    )


def gradients(compute, case, *values):
    leaves = [value.detach().requires_grad_() for value in values]
    y = compute(case, *leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, numbers(*y.shape, seed=2).to(y.dtype))]


@every_case
def test_output_in_float64_is_that_of_the_definition(case):
    values = inputs(case, torch.float64)
    hi = reference(case, *values)
    assert_within_budget(in_bands(case, *values), hi, lows(case, values))


@every_case
def test_output_and_gradients_are_those_of_the_definition(case):
    values = inputs(case, torch.float32)
    y, *found = gradients(in_bands, case, *values)
    exact, *hi = gradients(reference, case, *(value.double() for value in values))
    assert_within_budget(y, exact, lows(case, values))
    roads = zip(*lows(case, values, gradients, ROADS_OF_GRADIENTS), strict=True)
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
    bands = find_bands(values[2], case.axis, torch.float64)
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
    y = band_attention(wrong, case.axis, *values[:2])
    with pytest.raises(AssertionError, match="result: error"):
        assert_within_budget(y, hi, lows(case, values))


def test_second_derivatives_are_those_of_the_definition():
    case = Case(
        "small", quadratic((-1.0, 1.0), (1.5, 2.0)), size=61, batch=1, channels=2, outputs=2
    )
    values = inputs(case, torch.float64)

    def second(compute, case, *values):
        leaves = [value.detach().requires_grad_() for value in values]
        first = torch.autograd.grad(compute(case, *leaves).pow(3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)

    hi, several = second(reference, case, *values), lows(case, values, second, ROADS_OF_GRADIENTS)
    for result, exact, *roads in zip(second(in_bands, case, *values), hi, *several, strict=True):
        assert_within_budget(result, exact, roads)


def test_what_is_left_out_is_less_than_was_promised():
    """Per query, over all heads of every case: attention at keys that are in no band."""
    for case in CASES:
        *_, table = inputs(case, torch.float32)
        bands, axis = find_bands(table, case.axis, torch.float32), case.axis
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
        lambda delta: torch.where(delta > -3, -torch.inf, delta)[
            None
        ],  # the first queries see no key
        lambda delta: torch.where(delta == 5, 0.0, -50.0)[
            None
        ],  # the last queries look at all keys alike
    ],
    ids=["flat", "random", "nan", "nothing seen", "wide at an end"],
)
def test_other_heads_are_no_band(scores):
    axis = Axis(range(211), 211)
    assert find_bands(scores(axis.displacements().double()), axis, torch.float32) is None


def test_bfloat16_is_summed_before_it_is_rounded():
    case = CASES[0]
    values = [value.bfloat16() for value in inputs(case, torch.float64)]
    bands = find_bands(values[2].float(), case.axis, torch.bfloat16)
    y = band_attention(bands, case.axis, *values[:2])
    hi = reference(case, *(value.double() for value in values))
    precise = roundings(partial(reference, case), *(value.float() for value in values))
    assert_within_budget(y, hi, [low.bfloat16() for low in precise])


def test_under_autocast_keys_and_maps_are_rounded_first():
    case = CASES[0]
    keys, maps, table = inputs(case, torch.float32)
    bands = find_bands(table, case.axis, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = band_attention(bands, case.axis, keys, maps)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, band_attention(bands, case.axis, keys.bfloat16(), maps.bfloat16()))
    assert not torch.equal(y.float(), band_attention(bands, case.axis, keys, maps))
