"""Layouts, calls with random weights, and their sums."""

from dataclasses import replace

import numpy as np
import torch

from convattn.heads.head_sums import make_pairs, sum_heads
from convattn.heads.layout import AttentionCall, Layout, global_layout, grouped_layout
from convattn.heads.measure import LayerMeasure

EPS = torch.finfo(torch.float64).eps


def windows(grid, side):
    rows, cols = (torch.arange(0, size, side) for size in grid)
    corners = torch.cartesian_prod(rows, cols)
    inner = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    return corners[:, None] + inner[None]


def masked():
    places = windows((5, 7), 4)  # the last windows reach beyond the grid
    band = ((places[:, :, None] - places[:, None]).abs().sum(-1) < 4) | (
        places[:, :, None] == places[:, None]
    ).all(-1)
    return grouped_layout((5, 7), places, allowed=band, pattern="shifted windows")


def mark_in_the_middle():
    """A sequence whose fourth token is no position."""
    places = torch.tensor([[0, 1, 2, -1, 3, 4, 5, 6]])
    return Layout(
        "sequence", (7,), places, places.clamp(min=0)[..., None].double(), places[0] < 0, None
    )


def mask_and_mark():
    """A sequence in which nothing comes before what it sees but a mark, which the last position sees alone."""
    allowed = torch.ones(1, 8, 8, dtype=torch.bool).tril()
    allowed[0, -1, 1:] = False
    return global_layout((7,), 1).with_allowed(allowed)


LAYOUTS = {
    "global": global_layout((3, 5)),
    "one class token": global_layout((3, 5), 1),
    "five prefix tokens": global_layout((2, 5), 5),
    "sequence": global_layout((11,)),
    "sequence with a mark": global_layout((7,), 1),
    "sequence with a mark in the middle": mark_in_the_middle(),
    "sequence with a mark and a mask": mask_and_mark(),
    "reduced keys": global_layout(
        (4, 6), keys=torch.cartesian_prod(torch.tensor([0.5, 2.5]), torch.tensor([1.0, 4.0]))
    ),
    "keys outside": global_layout(
        (2, 3), keys=torch.cartesian_prod(torch.arange(-1, 3), torch.arange(-1, 4)).double()
    ),
    "windows": grouped_layout((6, 4), windows((6, 4), 2), pattern="windows"),
    "shifted windows with padding": masked(),
}


def make_call(layout, images=6, heads=3, seed=0, dtype=torch.float64, signed=False):
    draw = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(
        images,
        layout.groups,
        heads,
        layout.queries.shape[1],
        layout.keys.shape[1],
        generator=draw,
        dtype=torch.float64,
    )
    if layout.allowed is not None:
        scores = scores.masked_fill(~layout.allowed[:, None], -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    if signed:
        weights = weights - 0.5 * weights.roll(1, 2)
    return replace(call_of(layout, weights.to(dtype)), normalised=not signed)


def call_of(layout, weights):
    """A call whose inputs and outputs are not known."""
    return AttentionCall("layer", "Layer", layout, weights, None, None, True, 0.0, 0.0)


def whole_maps(call, head):
    """Puts the groups of a call below one another: maps, and positions of queries and keys."""
    layout = call.layout
    groups, queries, keys = layout.groups, layout.queries.shape[1], layout.keys.shape[1]
    maps = np.zeros((len(call.weights), groups * queries, groups * keys))
    allowed = np.zeros((groups * queries, groups * keys), dtype=bool)
    for group in range(groups):
        rows, cols = (
            slice(group * queries, (group + 1) * queries),
            slice(group * keys, (group + 1) * keys),
        )
        maps[:, rows, cols] = call.weights[:, group, head].double()
        allowed[rows, cols] = True if layout.allowed is None else layout.allowed[group]
    places = torch.where(layout.key_prefix[:, None], torch.nan, layout.keys)
    return (
        maps,
        layout.query_positions().flatten(0, 1).numpy(),
        places.flatten(0, 1).numpy(),
        allowed,
    )


def added(call, groups, batches=(slice(None),)):
    """The sums over batches of a call's images."""
    pairs = make_pairs(call.layout, "layer")
    members = torch.arange(len(call.weights)) * groups // len(call.weights)
    total = None
    for numbers in batches:
        sums = sum_heads(call.weights[numbers], pairs, members[numbers])
        total = sums if total is None else total.plus(sums)
    return total


def measured(call, groups, batches=(slice(None),)):
    """A layer with these sums."""
    layer = LayerMeasure(call, 3)
    layer.sums = added(call, groups, batches)
    return layer


def within(actual, hi, terms):
    """A sum of n numbers errs by at most n roundings of the sum of their sizes; a quotient of two, by twice that."""
    assert abs(actual - hi) <= 4 * terms * EPS * max(1.0, abs(hi)), (actual, hi)
