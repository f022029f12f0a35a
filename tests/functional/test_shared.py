"""Heads that are all combinations of a few matrices along each axis: found, and computed in every order."""

import copy
import sys
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch

from convattn.encodings import Quadratic
from convattn.functional import (
    GridSizes,
    attend,
    attention_weights,
    combine_heads,
    displacement_scores,
    find_head_grid,
    pad_keys,
    position_weights,
)
from convattn.functional import grid_attention as attention_of
from convattn.functional.shared import joint_blocks, row_strips
from convattn.grid import Geometry
from convattn.testing.budget import assert_within_budget, roundings

planning = sys.modules["convattn.functional.shared"]
channels = sys.modules["convattn.functional.shared"]


@dataclass(frozen=True)
class Case:
    name: str
    sizes: tuple[int, ...]
    centres: tuple[tuple[float, ...], ...]
    channels: int = 5
    outputs: int = 7
    groups: int = 1
    batch: int = 2
    sharpness: float = 128.0
    shuffled: bool = False
    geometry: dict[str, Any] = field(default_factory=dict)


ROWS, COLS = (-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0)
SQUARE = (ROWS, COLS)
CASES = [
    Case("kernel", (43, 37), SQUARE, geometry={"kernel_size": 3, "padding": 2}),
    Case("few channels", (43, 37), SQUARE, channels=3, outputs=53, geometry={"padding": 1, "stride": 2}),
    Case("stride", (41, 31), SQUARE, outputs=11, geometry={"kernel_size": 3, "padding": 1, "stride": 2}),
    Case("single head", (43, 37), ((0.0,), (0.0,)), outputs=17),
    Case("single head to fewer channels", (43, 37), ((0.0,), (0.0,)), channels=23, outputs=17),
    Case("single head with stride", (43, 37), ((0.0,), (0.0,)), outputs=17, geometry={"stride": 3}),
    Case("single head to few channels", (43, 37), ((0.0,), (0.0,))),
    Case("single head beside the query", (11, 13), ((2.0,), (-1.0,))),
    Case("soft", (11, 13), SQUARE, sharpness=0.7, geometry={"padding": 1}),
    Case("very soft and large", (67, 5), SQUARE, sharpness=0.01),
    Case("between pixels", (43, 37), ((0.4, 3.5), COLS), sharpness=3.0),
    Case("heads in another order", (11, 13), SQUARE, shuffled=True),
    Case("replicate", (11, 13), SQUARE, geometry={"padding": 3, "padding_mode": "replicate"}),
    Case("cropped", (11, 13), SQUARE, geometry={"padding": [(2, -1), (-2, 3)]}),
    Case("spread", (11, 13), SQUARE, geometry={"kernel_size": 3, "input_dilation": 3, "padding": 2}),
    Case("nothing but padding seen", (3, 5), ((-9.0,), (9.0,)), geometry={"padding": 11}),
    Case("groups", (11, 13), SQUARE, channels=6, outputs=10, groups=2),
    Case("depthwise", (43, 37), SQUARE, channels=7, outputs=7, groups=7, geometry={"padding": 1}),
    Case("depthwise, many channels", (5, 7), SQUARE, channels=257, outputs=257, groups=257),
    Case("depthwise, one image", (5, 7), SQUARE, channels=6, outputs=6, groups=6, batch=1, geometry={"padding": 1}),
    Case("depthwise, one large image", (61, 67), SQUARE, channels=6, outputs=6, groups=6, batch=1),
    Case("depthwise, single head", (5, 7), ((0.0,), (0.0,)), channels=7, outputs=7, groups=7),
    Case("depthwise with two outputs each", (5, 7), SQUARE, channels=3, outputs=6, groups=3),
    Case("columns of one pixel", (13, 1), (ROWS, (0.0,))),
    Case("rows of one pixel", (1, 13), ((0.0,), COLS)),
    Case("one pixel", (1, 1), ((0.0,), (0.0,))),
    Case("sequence", (61,), (COLS,), geometry={"padding": 2}),
    Case("depthwise sequence", (61,), (COLS,), channels=7, outputs=7, groups=7, geometry={"padding": 2}),
    Case("no image", (11, 13), SQUARE, batch=0),
    Case("many images", (7, 5), SQUARE, batch=11, geometry={"padding": 1}),
    Case("many images with a row that is not looked at", (8, 5), ((0.0,), COLS), batch=5, geometry={"stride": 3}),
]
MANY_CHANNELS = [
    Case("few pixels", (5, 6), ((0.0,), (0.0,)), channels=1024, outputs=728, geometry={"stride": 2}),
    Case("few outputs", (9, 11), ((0.0,), (0.0,)), channels=2048, outputs=2),
    Case("a narrow image", (21, 1), ((0.0,), (0.0,)), channels=1024, outputs=1030),
]
SINGLE = [case for case in CASES if len(list(product(*case.centres))) == 1 and case.groups == 1]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


class Made:
    """A case's heads, images and matrices, in a dtype."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        heads = list(product(*case.centres))
        if case.shuffled:
            heads = [heads[index] for index in torch.randperm(len(heads), generator=seeded(3)).tolist()]
        self.case, self.geometry = case, Geometry.parse(len(case.sizes), **case.geometry)
        self.axes = self.geometry.axes(case.sizes)
        encoding = Quadratic(len(heads), len(case.sizes), centres=[list(head) for head in heads])
        with torch.no_grad():
            encoding.root_sharpness.fill_((2 * case.sharpness) ** 0.5)
            self.tables = [t.to(dtype) for t in encoding.double().axis_tables(self.axes, torch.float64)]
        self.x = numbers(case.batch, case.channels, *case.sizes, seed=0).to(dtype)
        self.maps = numbers(len(heads), case.outputs, case.channels // case.groups, seed=1).to(dtype)
        self.bias = numbers(case.outputs, seed=2).to(dtype)

    def grid(self):
        found = find_head_grid(self.tables, self.axes, self.geometry, self.x.dtype)
        assert found is not None
        return found

    def plan(self):
        sizes = GridSizes(*self.x.shape[:2], self.case.outputs, self.case.groups, self.x.element_size())
        return attention_of(self.grid(), sizes)

    def compute(self):
        return self.plan()(self.x, self.maps, self.case.groups, self.bias)

    def weights(self):
        return [attention_weights(displacement_scores(t, (a,))) for t, a in zip(self.tables, self.axes, strict=True)]

    def reference(self):
        """The definition."""
        weights = torch.ones(len(self.maps), 1, 1, dtype=self.x.dtype)
        for along in self.weights():
            weights = torch.stack([torch.kron(one, other) for one, other in zip(weights, along, strict=True)])
        y = attend(weights, pad_keys(self.x, self.geometry), self.maps, self.case.groups)
        return self.finish(y.unflatten(-1, [len(axis.queries) for axis in self.axes]))

    def matrices_first(self):
        """The same sum in another order: W_h, then one axis after another, the last first."""
        keys, y = pad_keys(self.x, self.geometry), 0
        for head in range(len(self.maps)):
            values = combine_heads(keys[:, None], self.maps[head, None], self.case.groups)
            for number, weights in reversed(list(enumerate(self.weights(), start=2))):
                values = (values.movedim(number, -1) @ weights[head].mT).movedim(-1, number)
            y = y + values
        return self.finish(y)

    def axis_by_axis(self):
        """The same means, taken along one axis after another, then W_h."""
        means = pad_keys(self.x, self.geometry)[:, None].expand(-1, len(self.maps), *[-1] * (self.x.ndim - 1))
        for number, weights in enumerate(self.weights(), start=3):
            mixed = torch.einsum("hqk,bh...k->bh...q", weights, means.movedim(number, -1))
            means = mixed.movedim(-1, number)
        return self.finish(combine_heads(means, self.maps, self.case.groups))

    def finish(self, y):
        return y + self.bias.view(-1, *(1,) * len(self.axes))

    def check(self):
        hi = Made(self.case, torch.float64).reference()
        other_digits = roundings(self.axis_by_axis_of, self.x, self.maps, self.bias)
        assert_within_budget(self.compute(), hi, [self.reference(), self.matrices_first(), *other_digits])

    def axis_by_axis_of(self, *given):
        made = copy.copy(self)
        made.x, made.maps, made.bias = given
        return made.axis_by_axis()


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def numbers(*shape, seed):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def orders(case):
    """Returns the orders in which a case can be computed."""
    if case.groups > 1 and case.groups == case.channels == case.outputs:
        yield "channels"
    yield "keys"
    if case.groups == 1:
        yield "few"
    if len(list(product(*case.centres))) == 1:
        yield "values"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_case
def test_output_is_that_of_the_definition(case, dtype):
    Made(case, dtype).check()


@pytest.mark.parametrize("case", MANY_CHANNELS, ids=lambda case: case.name)
def test_sums_over_many_channels_are_taken_in_parts(case):
    """Products of narrow matrices add one number after another, and are several times as far from the definition."""
    Made(case, torch.float32).check()


@pytest.mark.parametrize(
    ("case", "order"),
    [
        pytest.param(case, order, id=f"{case.name}-{order}")
        for case in CASES
        if case.name != "depthwise, one large image"  # what is cut small need not be large
        for order in orders(case)
    ],
)
def test_every_order_in_small_pieces_gives_the_same(case, order, monkeypatch):
    monkeypatch.setattr(planning, "_order", lambda *_: order)
    monkeypatch.setattr(planning, "_CACHE", 1 << 12)
    monkeypatch.setattr(channels, "_MOST", 1 << 7)
    made = Made(case, torch.float32)
    assert made.plan().order == order
    made.check()


def test_all_orders_are_taken():
    taken = {Made(case, torch.float32).plan().order for case in CASES}
    assert taken == {"keys", "few", "values", "channels"}


@every_case
def test_images_that_lie_otherwise_in_memory(case):
    made = Made(case, torch.float32)
    made.x = made.x.movedim(1, -1).contiguous().movedim(-1, 1)
    made.check()
    made.maps = made.maps.movedim(0, -1).contiguous().movedim(-1, 0)
    made.check()


@every_case
def test_matrices_of_every_head_are_those_of_the_definition(case):
    made = Made(case, torch.float64)
    grid, geometry = made.grid(), made.geometry
    by_head = grid.by_head(len(made.axes))
    for number, (weights, table, axis) in enumerate(zip(by_head, made.tables, made.axes, strict=True)):
        expected = position_weights(table, (axis,))
        if grid.geometry is None:  # zeros that are added are left out, and pixels that are cropped weigh nothing
            (before, _), step = geometry.padding[number], geometry.input_dilation[number]
            keys = [before + step * pixel for pixel in range(case.sizes[number])]
            zero = torch.zeros_like(expected[..., 0])
            expected = torch.stack([expected[..., key] if 0 <= key < axis.keys else zero for key in keys], -1)
        assert torch.equal(weights, expected)


@pytest.mark.parametrize(
    "centres", [[[0, 0], [0, 1], [1, 0]], [[0, 0], [0, 0]], [[0, 0], [1, 1]]], ids=["one missing", "twice", "diagonal"]
)
def test_heads_that_are_no_grid(centres):
    geometry = Geometry.parse(2)
    axes = geometry.axes((5, 7))
    encoding = Quadratic(len(centres), 2, centres=[[float(x) for x in centre] for centre in centres], sharpness=1.0)
    with torch.no_grad():
        assert find_head_grid(encoding.axis_tables(axes), axes, geometry, torch.float32) is None


def test_queries_that_see_only_padding_ask_for_no_keys():
    """The first query of a head that looks at the pixel before; its row of attention to pixels is zero."""
    before = torch.ones(63).diag(-1)[None]
    assert before[0, 0].count_nonzero() == 0
    blocks = joint_blocks(before, "m q k -> (m q) k")
    assert [block.queries for block in blocks] == [slice(0, 16), slice(16, 32), slice(32, 48), slice(48, 64)]
    assert [block.keys for block in blocks] == [slice(0, 15), slice(15, 31), slice(31, 47), slice(47, 63)]
    assert row_strips(before, 16)[0].keys == slice(0, 15)


def test_a_matrix_that_is_wrong_by_one_pixel_is_noticed(monkeypatch):
    """Negative control."""
    right = planning.row_strips

    def wrong(matrices, longest, **options):
        return right(matrices.roll(1, -1), longest, **options)

    monkeypatch.setattr(planning, "row_strips", wrong)
    with pytest.raises(AssertionError, match="result: error"):
        Made(CASES[0], torch.float32).check()


@pytest.mark.parametrize(
    ("case", "order"),
    [pytest.param(case, order, id=f"{case.name}-{order}") for case in (CASES[0], *SINGLE) for order in orders(case)],
)
def test_a_bias_is_added_last(case, order, monkeypatch):
    monkeypatch.setattr(planning, "_order", lambda *_: order)
    monkeypatch.setattr(planning, "_CACHE", 1 << 12)
    made = Made(case, torch.float64)
    without = made.plan()(made.x, made.maps, case.groups, None)
    assert torch.equal(made.finish(without), made.compute())
