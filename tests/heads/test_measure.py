"""Sums of one layer over batches: what may not change between them, and how they are taken up again."""

from dataclasses import replace

import pytest
import torch
from tests.heads.statistics_cases import LAYOUTS, make_call

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads.head_sums import make_pairs
from convattn.heads.measure import LayerMeasure

MEMBERS = torch.tensor([0, 0, 1, 1, 2, 2])


def begun(call):
    measure = LayerMeasure(call, 3)
    measure.add(call, MEMBERS, held_out=False)
    return measure


def infinite(call):
    weights = call.weights.clone()
    weights[3, 0, 1, 2, 4] = torch.inf
    return replace(call, weights=weights)


CHANGES = {
    "positions": (
        lambda _: make_call(LAYOUTS["windows"]),
        UnsupportedModelError,
        "layer: queries or keys lie elsewhere than for the images before, or heads are not as many",
    ),
    "heads": (
        lambda call: make_call(call.layout, heads=2),
        UnsupportedModelError,
        "layer: queries or keys lie elsewhere than for the images before, or heads are not as many",
    ),
    "heads of the network itself": (
        lambda call: replace(make_call(call.layout, heads=2), name=""),
        UnsupportedModelError,
        "the network itself: queries or keys lie elsewhere than for the images before, or heads are not as many",
    ),
    "infinite weights": (
        infinite,
        ArgumentError,
        "images must give finite attention, but weights of layer are not finite",
    ),
}


@pytest.mark.parametrize(("change", "error", "message"), CHANGES.values(), ids=CHANGES)
def test_what_changes_between_batches_is_refused_and_nothing_is_added(change, error, message):
    call = make_call(LAYOUTS["global"])
    measure = begun(call)
    with pytest.raises(error) as caught:
        measure.add(change(call), MEMBERS, held_out=False)
    assert str(caught.value) == message
    assert measure.sums.images.sum() == 6


@pytest.mark.parametrize("name", LAYOUTS)
def test_only_the_same_layout_fits_or_one_with_a_mask_beside(name):
    pairs = make_pairs(LAYOUTS[name], "layer")
    assert {other for other, layout in LAYOUTS.items() if pairs.fits(layout)} - {
        f"{name} and a mask"
    } == {name}
    again = replace(LAYOUTS[name], keys=LAYOUTS[name].keys.clone())
    assert pairs.fits(again)
    layer = LayerMeasure(make_call(LAYOUTS[name]), 3)
    for other, layout in {**LAYOUTS, "again": again}.items():
        beside = LayerMeasure(make_call(layout), 3, [layer])
        assert (beside.pairs is layer.pairs) == (other in (name, "again")), other


def test_another_mask_does_not_fit():
    layout = LAYOUTS["sequence with a mark and a mask"]
    other = replace(layout, allowed=layout.allowed.clone())
    assert make_pairs(layout, "layer").fits(other)
    other.allowed[0, 5, 2] = False
    assert not make_pairs(layout, "layer").fits(other)
    without = replace(layout, allowed=None)
    assert not make_pairs(layout, "layer").fits(without)
    assert make_pairs(without, "layer").fits(layout)


def test_the_worst_proof_of_all_batches_is_kept():
    call = make_call(LAYOUTS["global"])
    measure = begun(replace(call, error=1e-9, budget=1e-6))
    for error, budget, kept in ((2e-9, 2e-6, 1e-9), (5e-7, 1e-6, 5e-7), (4e-7, 1e-6, 5e-7)):
        measure.add(replace(call, error=error, budget=budget), MEMBERS, held_out=False)
        assert measure.error == kept
