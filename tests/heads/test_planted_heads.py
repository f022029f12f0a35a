"""Heads whose kernels are planted in queries and keys: replaced within the budget of rounding, at borders too."""

import copy
import itertools
import math
from dataclasses import replace

import pytest
import timm
import torch
from tests.heads.report_cases import (
    GRID,
    attention_maps,
    fixed_weights,
    outputs,
    report_of,
)
from torch import nn

from convattn.budget import assert_within_budget, roundings
from convattn.functional.convolution import convolve
from convattn.heads import replaceable_heads
from convattn.heads.convolved_attention import KernelMeans
from convattn.heads.replace import replace_heads
from convattn.heads.replaceable_heads import every_head, measured_heads


class Planted(nn.Module):
    """timm's attention whose heads look at fixed shifts: scores −α‖k − q − Δ‖² from positions in the tokens."""

    def __init__(self, shifts, sharpness):
        super().__init__()
        width = 6
        self.patches = nn.Conv2d(1, 1, 1)  # where a network cuts images; this one is given tokens
        self.attn = timm.layers.Attention(width * len(shifts), num_heads=len(shifts))
        cells = torch.cartesian_prod(*(torch.arange(float(size)) for size in GRID))
        self.register_buffer(
            "places", torch.cat([torch.ones(len(cells), 1), cells, cells.square().sum(1, True)], 1)
        )
        with torch.no_grad():
            query, key, _ = self.attn.qkv.weight.view(3, len(shifts), width, -1)
            query.zero_()
            key.zero_()
            for head, shift in enumerate(shifts):
                scale = sharpness * width**0.5
                for axis, step in enumerate(shift):  # 2α (q + Δ)·k − α‖k‖²
                    query[head, axis, 0], query[head, axis, 1 + axis] = 2 * scale * step, 2 * scale
                    key[head, axis, 1 + axis] = 1
                query[head, 2, 0], key[head, 2, 3] = -scale, 1

    def forward(self, x):
        places = self.places.expand(len(x), -1, -1)
        return self.attn(torch.cat([places, x[..., places.shape[2] :]], 2))


SHIFTS = ((0, 0), (1, 0), (0, -1))


def planted(sharpness, dtype=torch.float64, *, known=True):
    """The network, tokens, and a report with the kernels that are planted, or with plain means."""
    torch.manual_seed(0)
    network = Planted(SHIFTS, sharpness).to(dtype).eval()
    x = torch.randn(2, math.prod(GRID), 18, dtype=dtype)
    tokens = torch.cat([network.places.expand(2, -1, -1), x[..., 4:]], 2)
    report = report_of(
        network,
        {"attn": next(iter(attention_maps(Holder(network.attn), tokens).values()))},
        prefix=0,
    )
    if known:
        (layer,) = report.layers
        shifts = torch.tensor(layer.displacements, dtype=torch.float64)
        scores = [-sharpness * (shifts - torch.tensor(shift)).square().sum(1) for shift in SHIFTS]
        kernels = [tuple(score.softmax(0).tolist()) for score in scores]
        heads = [
            replace(head, position_kernel=kernel)
            for head, kernel in zip(layer.heads, kernels, strict=True)
        ]
        measured = replace(layer.measured, heads=tuple(heads))
        report = replace(report, layers=(replace(layer, measured=measured),))
    return network, x, report


class Holder(nn.Module):
    """A network that is one layer."""

    def __init__(self, attn):
        super().__init__()
        self.attn = attn

    def forward(self, x):
        return self.attn(x)


@pytest.mark.parametrize("sharpness", [0.5, 20.0], ids=["soft", "hard"])
def test_heads_that_are_convolutions_are_replaced_without_loss(sharpness):
    """At borders and corners too, where softmax leaves out what does not exist."""
    network, x, report = planted(sharpness)
    narrow = copy.deepcopy(network).float()
    made, record = replace_heads(narrow, report, threshold=0.5, same_weights=False)
    assert len(record.replaced) == 3
    assert record.layers_without_softmax == ("attn",)
    assert_within_budget(
        outputs(made, x.float()), outputs(network, x), roundings(outputs, narrow, x.float())
    )


def test_the_check_rejects_a_kernel_of_plain_means():
    """A planted fault: mean weights in place of the kernel add the borders' weights everywhere."""
    network, x, report = planted(20.0, known=False)
    narrow = copy.deepcopy(network).float()
    made, _ = replace_heads(narrow, report, heads=every_head(report), same_weights=False)
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(
            outputs(made, x.float()), outputs(network, x), roundings(outputs, narrow, x.float())
        )


def with_kernels(layer):
    """A layer, and the kernel of each of its heads."""
    return layer, {head.head: head.position_kernel for head in layer.heads}


@pytest.mark.parametrize("sharpness", [0.5, 20.0], ids=["soft", "hard"])
def test_boxes_contain_no_displacement_and_all_weight_but_rounding(sharpness):
    measured = measured_heads(*with_kernels(planted(sharpness)[2].layers[0]))
    taps = tuple(measured.kernel.shape[1:])
    for first, size in zip(measured.first, taps, strict=True):
        assert first <= 0 < first + size
    assert (measured.kernel.flatten(1).sum(1) - 1).abs().max() < 1e-12
    assert ((measured.first, taps) == ((0, -1), (2, 2))) == (sharpness == 20.0)


@pytest.mark.parametrize("grid", [(41,), (7, 9)], ids=["line", "picture"])
@pytest.mark.parametrize("sharpness", [0.02, 0.5, 20.0])
def test_no_smaller_box_holds_all_weight_but_rounding(grid, sharpness, monkeypatch):
    """The slow way cuts one side after another, and convolves each time."""
    reach = max(grid) - 1
    axes = [torch.arange(-reach, reach + 1, dtype=torch.float64)] * len(grid)
    squares = sum((axis - 1) ** 2 for axis in torch.meshgrid(axes, indexing="ij"))
    kernels = (-sharpness * squares).exp()[None]
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return convolve(*arguments)

    monkeypatch.setattr(replaceable_heads, "convolve", counted)
    box = replaceable_heads._smallest_box(kernels, grid)
    assert len(calls) <= 2 + math.log2(2 * reach * len(grid) + 1)
    assert box == smallest_box_by_steps(kernels, grid)


def smallest_box_by_steps(kernels, grid):
    """Cuts sides while what is outside weighs no more than rounding at any place."""
    radius = kernels.shape[1] // 2
    box = (slice(0, 2 * radius + 1),) * len(grid)

    def seen(kernel):
        places = itertools.product(*map(range, grid))
        windows = [
            tuple(
                slice(radius - at, radius - at + size) for at, size in zip(place, grid, strict=True)
            )
            for place in places
        ]
        return torch.stack([kernel[0][window].sum() for window in windows])

    while smaller := replaceable_heads._without_a_side(kernels, box):
        outside = kernels.clone()
        outside[:, *smaller] = 0
        if (seen(outside) > replaceable_heads._CUT * seen(kernels)).any():
            break
        box = smaller
    return box


@pytest.mark.parametrize("rest", [1e-6, 1e-9, 1e-12])
def test_borders_that_a_head_looks_past_keep_the_little_that_is_left(rest):
    """At the last columns only a share `rest` of the kernel is on the grid, and is then shared out among its places."""
    _, _, report = planted(5.0)
    (layer,) = report.layers
    count = len(layer.displacements)
    kernel = tuple(1 - rest if shift == (0, 3) else rest / count for shift in layer.displacements)
    heads = tuple(replace(head, position_kernel=kernel) for head in layer.heads)
    layer = replace(layer, measured=replace(layer.measured, heads=heads))
    group = measured_heads(*with_kernels(layer))
    weights = KernelMeans(group.kernel, group.first).weights(GRID)
    assert (weights - fixed_weights(layer)).abs().sum(-1).max() <= 1e-6
