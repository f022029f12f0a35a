"""The fast paths against the readable one, on images large enough for their shortcuts: bands and cache pieces."""

from dataclasses import dataclass

import pytest
import torch

from convattn.budget import Sums, assert_within_budget
from convattn.functional import (
    attend,
    attention_weights,
    displacement_scores,
    separable_attention,
    tiles,
)
from convattn.functional.fourier import fourier_attention, fourier_filters
from convattn.functional.reference import combine_heads, position_weights
from convattn.grid import Axis

HEADS = 4
SLOPES = torch.tensor([0.003, 0.05, 1.0, 300.0])
"""Sharpness of the heads: over the whole image, over part of it, over a few pixels, one-hot."""


@dataclass(frozen=True)
class Case:
    name: str
    axes: tuple[Axis, ...]
    batch: int = 2
    channels: int = 3
    outputs: int = 5
    groups: int = 1


def whole(*sizes):
    return tuple(Axis(range(size), size) for size in sizes)


CASES = [
    Case("sequence", whole(211)),
    Case("wide image", whole(3, 101)),
    Case("tall image", whole(101, 3)),
    Case("image with strided queries", (Axis(range(1, 90, 3), 97), Axis(range(2, 5), 7))),
    Case("volume", whole(3, 5, 37), batch=1),
    Case("an image larger than the cache", whole(67, 2), batch=1, channels=251, outputs=2),
    Case("images of which few fit the cache", whole(11, 2), batch=5, channels=503, outputs=2),
    Case("groups", whole(3, 67), channels=6, outputs=10, groups=2),
    Case("depthwise", whole(67, 3), channels=7, outputs=7, groups=7),
    Case("no image", whole(37, 5), batch=0),
    Case("one pixel", whole(1, 1)),
]


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch):
    """Images of few channels overflow it, as those of 4,000 do the one in use."""
    monkeypatch.setattr(tiles, "_CACHE", 1 << 17)


every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(case, dtype):
    """Tables of quadratic heads whose centres are off and on the pixels, key images and matrices."""
    tables = []
    for axis in case.axes:
        centres = torch.tensor([0.4, -3.0, axis.highest - 0.3, 2.0]).double()
        steps = axis.displacements().double()
        tables.append(-(SLOPES[:, None] * (steps - centres[:, None]) ** 2).to(dtype))
    keys = numbers(case.batch, case.channels, *(axis.keys for axis in case.axes)).to(dtype)
    return [
        keys,
        numbers(HEADS, case.outputs, case.channels // case.groups, seed=1).to(dtype),
        *tables,
    ]


def separable(case, keys, maps, *tables):
    weights = [
        position_weights(table, (axis,)) for table, axis in zip(tables, case.axes, strict=True)
    ]
    return separable_attention(weights, keys, maps, case.groups)


def full_table(tables):
    total = tables[0]
    for table in tables[1:]:
        total = total[..., None] + table.view(len(table), *(1,) * (total.ndim - 1), -1)
    return total


def dense(case, keys, maps, *tables):
    y = separable_attention(
        [position_weights(full_table(tables), case.axes)], keys.flatten(2), maps, case.groups
    )
    return y.unflatten(-1, [len(axis.queries) for axis in case.axes])


def fourier(case, keys, maps, *tables):
    filters = fourier_filters(full_table(tables), case.axes, keys.dtype)
    return fourier_attention(filters, case.axes, keys, maps, case.groups)


def reference(case, keys, maps, *tables):
    weights = attention_weights(displacement_scores(full_table(tables), case.axes))
    y = attend(weights, keys, maps, case.groups)
    return y.unflatten(-1, [len(axis.queries) for axis in case.axes])


def matrices_first(case, keys, maps, *tables):
    """The same sum in another order: W_h first, then A_h."""
    weights = attention_weights(displacement_scores(full_table(tables), case.axes)).to(keys.dtype)
    pixels = keys.flatten(2)
    y = sum(
        combine_heads(pixels[:, None], maps[h, None], case.groups) @ weights[h].mT
        for h in range(len(maps))
    )
    return y.unflatten(-1, [len(axis.queries) for axis in case.axes])


def axis_by_axis(case, keys, maps, *tables):
    """The same weights as a Kronecker product of those of the axes."""
    weights = torch.ones(len(maps), 1, 1, dtype=keys.dtype)
    for table, axis in zip(tables, case.axes, strict=True):
        factor = attention_weights(displacement_scores(table, (axis,)))
        weights = torch.stack(
            [torch.kron(one, other) for one, other in zip(weights, factor, strict=True)]
        )
    y = attend(weights, keys, maps, case.groups)
    return y.unflatten(-1, [len(axis.queries) for axis in case.axes])


def divided_last(case, keys, maps, *tables):
    """The exponentials of a sum of scores; the sum of them divides the means, so that its gradient is rounded too."""
    scores = displacement_scores(full_table(tables), case.axes)
    weights = torch.exp(scores - scores.detach().amax(-1, keepdim=True)).to(keys.dtype)
    means = torch.einsum("hqk,bck->bhcq", weights, keys.flatten(2)) / weights.sum(-1)[:, None]
    return combine_heads(means, maps, case.groups).unflatten(
        -1, [len(axis.queries) for axis in case.axes]
    )


def along_each_axis(case, keys, maps, *tables):
    """The same means, taken along one axis after another."""
    means = keys[:, None].expand(-1, len(maps), *keys.shape[1:])
    for number, (table, axis) in enumerate(zip(tables, case.axes, strict=True), start=3):
        weights = attention_weights(displacement_scores(table, (axis,))).to(keys.dtype)
        mixed = torch.einsum("hqk,bh...k->bh...q", weights, means.movedim(number, -1))
        means = mixed.movedim(-1, number)
    return combine_heads(means, maps, case.groups)


ROADS = (matrices_first, reference, divided_last, axis_by_axis, along_each_axis)
PATHS = {"separable": separable, "dense": dense, "fourier": fourier}


def gradients(compute, case, values):
    leaves = [value.detach().requires_grad_() for value in values]
    y = compute(case, *leaves)
    upstream = numbers(*y.shape, seed=2).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, upstream)]


FEW = 12
"""Numbers of a table: of their gradients, all roads may be right by luck."""


def sums_of_few(case, values):
    """What the output's numbers add to the gradients of short tables, by name."""
    keys, maps, *tables = (value.double() for value in values)
    found = {}
    for number, (name, table) in enumerate(zip(["rows", "cols", "depth"], tables, strict=False)):
        if 0 < table.numel() <= FEW:

            def output(changed, number=number):
                return reference(case, keys, maps, *tables[:number], changed, *tables[number + 1 :])

            units = torch.eye(table.numel(), dtype=table.dtype).view(-1, *table.shape)
            slopes = torch.stack([torch.func.jvp(output, (table,), (unit,))[1] for unit in units])
            terms = (slopes * numbers(*slopes.shape[1:], seed=2)).flatten(1)
            found[name] = Sums(terms.shape[1], terms.abs().sum(1).view(table.shape))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@every_case
def test_output_is_that_of_the_definition(case, dtype):
    values = inputs(case, dtype)
    hi = reference(case, *(value.double() for value in values))
    lows = [road(case, *values) for road in ROADS]
    for name, path in PATHS.items():
        assert_within_budget(path(case, *values), hi, lows, name)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:FutureWarning"
)  # torch's own forward mode
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_case
def test_gradients_are_those_of_the_definition(case, dtype):
    values = inputs(case, dtype)
    hi = gradients(reference, case, [value.double() for value in values])
    roads, sums = [gradients(road, case, values) for road in ROADS], sums_of_few(case, values)
    names, lows = ("y", "keys", "maps", "rows", "cols", "depth"), list(zip(*roads, strict=True))
    for kind, path in PATHS.items():
        for name, result, *expected in zip(
            names, gradients(path, case, values), hi, lows, strict=False
        ):
            assert_within_budget(
                result, *expected, f"{kind}: gradient of {name}", sums=sums.get(name)
            )
