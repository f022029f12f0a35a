"""What `compare_reports` tells as a difference, and what not."""

import math
from dataclasses import replace

import pytest
import torch
from tests.heads.analyze_cases import gated, noise

from convattn import RelativeAttention2d, Shift
from convattn.errors import ArgumentError
from convattn.heads.analysis import analyze
from convattn.heads.compare import compare_reports
from convattn.layers import RelativeAttention1d


def hard(displacements):
    network = RelativeAttention2d(
        6, 5, num_heads=3, encoding=Shift(3, 2, displacements=displacements)
    )
    return analyze(network.eval(), noise(4, 6, 5, 7), controls=(), progress=False)


@pytest.fixture(scope="module")
def mixed():
    return analyze(gated(0.6), noise(20, 6, 5, 7), controls=(), progress=False)


def changed(report, **numbers):
    """The report with other numbers of its first head."""
    (layer,) = report.layers
    head, *others = layer.heads
    measured = replace(layer.measured, heads=(replace(head, **numbers), *others))
    return replace(report, layers=(replace(layer, measured=measured),))


def told(first, second):
    return [(item.head, item.number) for item in compare_reports(first, second).differences]


@pytest.mark.parametrize("error", [0.0, 1e-16])
def test_rounding_is_no_difference(mixed, error):
    eps = torch.finfo(torch.float32).eps
    for value in (0.25, 9.0):
        one, near, far = (
            changed(
                mixed, distance=replace(mixed.layers[0].heads[0].distance, value=size, error=error)
            )
            for size in (value, value * (1 + eps), value * (1 + 2000 * eps))
        )
        assert told(one, near) == []
        assert told(one, far) == [(0, "distance")]


@pytest.mark.parametrize("values", [(0.1, 0.9), (0.1, math.nan), (math.nan, 0.1)])
@pytest.mark.parametrize("errors", [(math.nan, math.nan), (1e-3, math.nan), (math.nan, 1e-3)])
def test_numbers_not_known_or_without_a_standard_error_are_not_judged(mixed, values, errors):
    score = mixed.layers[0].heads[0].position_score
    one, other = (
        changed(mixed, position_score=replace(score, value=value, error=error))
        for value, error in zip(values, errors, strict=True)
    )
    found = compare_reports(one, other)
    assert found.differences == ()
    assert found.not_covered == (
        "position_score: not known, or without a standard error, in a report",
    )


def test_a_head_that_looks_elsewhere_is_told():
    one, other = hard([(0, 1), (-1, 0), (1, 1)]), hard([(0, -1), (-1, 0), (1, 1)])
    comparison = compare_reports(one, other)
    found, told = comparison.differences, len(comparison.differences)
    assert (
        f"{told - 1} of more than 3 standard errors, 1 shift of hard heads" in comparison.summary()
    )
    assert {(item.head, item.number) for item in found} >= {(0, "hard_shift[1]"), (0, "shift[1]")}
    (moved,) = (item for item in found if item.number == "hard_shift[1]")
    assert (moved.first.value, moved.second.value, moved.errors) == (1.0, -1.0, math.inf)
    assert not any("[0]" in item.number or item.head > 0 for item in found)


def test_heads_are_counted_and_numbers_averaged_for_each_report(mixed):
    (layer,), (other,) = mixed.layers, hard([(0, 1), (-1, 0), (1, 1)]).layers
    head = layer.heads[0]
    (soft,) = changed(
        mixed,
        position_score=replace(head.position_score, value=0.2),
        hard_share=replace(head.hard_share, value=0.4),
    ).layers
    found = compare_reports(
        replace(mixed, layers=(soft, layer)), replace(mixed, layers=(other, other))
    )
    assert found.words == ("3 convolutions, 2 neighbours, 1 row", "6 convolutions")
    rounding = 6 * torch.finfo(torch.float64).eps  # of a sum of six positive numbers, divided
    means = tuple(sum(head.distance.value for head in one.heads) / 3 for one in (layer, other))
    scores = tuple(one.measured.convolution_score.value for one in (layer, other))
    for numbers, expected in ((found.mean_distance, means), (found.convolution_score, scores)):
        assert numbers == pytest.approx(expected, rel=rounding, abs=0)
        assert expected[0] != expected[1]


def test_the_largest_weight_of_a_head_that_is_not_hard_is_chance(mixed):
    head = mixed.layers[0].heads[0]
    share = replace(head.hard_share, value=0.4)
    one, other = (
        changed(mixed, hard_share=share, hard_shift=shift) for shift in ((0.0, 1.0), (0.0, 2.0))
    )
    assert told(one, other) == []


def test_numbers_of_other_kernels_are_not_compared(mixed):
    network, images = gated(0.6), noise(20, 6, 5, 7)
    larger = analyze(network, images, controls=(), progress=False, kernel_size=5)
    wider = analyze(network, images, controls=(), progress=False, radius=1)
    for other, limit in (
        (larger, "tap_coverage, convolution_score: kernel_size is 3 and 5"),
        (wider, "kernel_share: radius is 7 and 1"),
    ):
        found = compare_reports(mixed, other)
        assert found.not_covered == (limit,)
        assert found.differences == ()


def test_a_report_without_layers_has_nothing_to_compare(mixed):
    with pytest.raises(ArgumentError, match=r"^reports must have layers, but one has none$"):
        compare_reports(mixed, replace(mixed, layers=()))


def test_layers_and_heads_without_a_partner_are_told(mixed):
    (layer,) = mixed.layers
    fewer = replace(layer, measured=replace(layer.measured, heads=layer.heads[:2]))
    found = compare_reports(mixed, replace(mixed, layers=(fewer, layer)))
    assert (found.layers, found.heads, found.differences) == (1, 2, ())
    assert found.not_covered == (
        "layers without a partner: the reports have 1 and 2",
        "heads without a partner: some layers have another number of heads",
    )


def test_shifts_along_other_axes_are_not_compared(mixed):
    torch.manual_seed(0)
    sequence = analyze(
        RelativeAttention1d(6, 5, num_heads=3, encoding="distance"),
        noise(20, 6, 11),
        controls=(),
        progress=False,
    )
    found = compare_reports(mixed, replace(sequence, radius=mixed.radius))
    grids = "grids differ: lengths are in cells of each network's own grid"
    lines = "line_share: not known, or without a standard error, in a report"
    assert found.not_covered == (grids, lines)
    assert found.differences
    assert not any("shift[" in item.number for item in found.differences)
