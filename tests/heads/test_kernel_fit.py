import numpy as np
import pytest
import torch
from tests.heads.analyze_cases import report_of
from tests.heads.reference_statistics import reference_error
from tests.heads.statistics_cases import LAYOUTS, added, call_of, make_call, measured, within

from convattn.heads import kernel_fit as likelihood
from convattn.heads.controls import CONTROLS
from convattn.heads.head_sums import make_pairs
from convattn.heads.kernel_fit import KernelFit
from convattn.heads.layout import global_layout
from convattn.heads.measure import layer_statistics


def by_position(layout, images=8, seed=0):
    """Heads whose scores are a table of displacements: softmax shares them out at the border."""
    pairs = make_pairs(layout, "layer")
    draw = torch.Generator().manual_seed(seed)
    table = 2 * torch.randn(2, len(pairs.counts) + 1, generator=draw, dtype=torch.float64)
    table[:, -1] = -torch.inf
    made = torch.zeros(
        layout.groups, 2, layout.queries.shape[1], layout.keys.shape[1], dtype=torch.float64
    )
    scores = table[:, pairs.bins].movedim(0, 1)
    weights = scores.softmax(-1).nan_to_num(0.0)
    rows, cols = (torch.arange(size) for size in made.shape[2:])
    made[:, :, rows[pairs.rows, None], cols[None, pairs.cols]] = weights
    call = call_of(layout, made.expand(images, -1, -1, -1, -1))
    return call, pairs, table[:, :-1].log_softmax(-1)


def scored(call, groups):
    """A layer that is scored on the images that it was fitted to."""
    layer = measured(call, groups)
    layer.kernels.score(call.weights, layer.pairs, layer.sums)
    return layer


@pytest.mark.parametrize(
    "name", ["global", "sequence", "windows", "keys outside", "one class token"]
)
def test_weights_by_position_are_found_again(name):
    """Their shares are those of softmax, which the mean weight of each displacement is not."""
    call, pairs, table = by_position(LAYOUTS[name])
    layer = scored(call, 4)
    assert layer.kernels.unsettled == 0
    for head in range(2):
        exact, again = (pairs.shared_out(logs[head]) for logs in (table, layer.kernels.logs))
        # Rounds end where displacements get what was measured to 1e-5 of the largest.
        assert (exact - again).abs().max() < 1e-3
    heads = layer_statistics(layer, 1).heads
    for head in heads:
        assert head.position_score.value > 1 - 1e-5
        assert head.content_share.value < 1e-12
    if name != "keys outside":
        assert all(head.shift_invariance.value < head.position_score.value for head in heads)


def test_position_score_is_that_of_whole_maps():
    """Weights that depend on the image: the share explained, on other images, by the shares of the first."""
    layout = LAYOUTS["global"]
    fitted, held = make_call(layout, seed=0), make_call(layout, seed=1)
    pairs = make_pairs(layout, "layer")
    fit = KernelFit()
    fit.score(held.weights, pairs, added(fitted, 3))
    for head in range(3):
        maps = held.weights[:, 0, head].numpy()
        model = pairs.shared_out(fit.logs[head])[0].numpy()
        errors, totals = (np.square(maps - other).sum(axis=(1, 2)) for other in (model, 1 / 15))
        found = fit.estimate(head)
        within(found.value, 1 - errors.sum() / totals.sum(), maps.size)
        within(found.error, reference_error(errors, totals, len(errors)), maps.size)
        assert found.value < 0.1


def test_a_hard_head_at_the_border_leaves_no_weight_in_the_middle():
    """At the last column such a head falls back on its own position, which its kernel must not take for a habit."""
    layout = global_layout((6, 7))
    delta = layout.keys[0][None] - layout.query_positions()[0][:, None]
    weights = (
        (-15 * (delta - torch.tensor([0.0, 1.0])).square().sum(-1))
        .softmax(-1)
        .expand(4, 1, 1, -1, -1)
    )
    layer = scored(call_of(layout, weights), 4)
    (head,) = layer_statistics(layer, 1).heads
    steps = layer.pairs.displacements[layer.pairs.within(1)].tolist()
    assert head.kernel[steps.index([0.0, 0.0])] == pytest.approx(1 / 7, abs=1e-5)
    assert head.position_kernel[steps.index([0.0, 0.0])] < 1e-4
    assert head.position_kernel[steps.index([0.0, 1.0])] > 1 - 1e-4
    assert head.position_score.value > 1 - 1e-6


@pytest.mark.parametrize(("centre", "settled"), [(1.0, True), (-300.0, False)])
def test_heads_that_look_beyond_the_border_have_not_settled(centre, settled):
    layout = global_layout((61,))
    delta = layout.keys[0][None] - layout.query_positions()[0][:, None]
    weights = (-0.01 * (delta - centre).square().sum(-1)).softmax(-1).expand(4, 1, 1, -1, -1)
    assert scored(call_of(layout, weights), 4).kernels.unsettled == (not settled)


@pytest.mark.parametrize("rounds", [0, likelihood._ROUNDS])
def test_heads_whose_fit_does_not_end_are_named(rounds, monkeypatch):
    monkeypatch.setattr(likelihood, "_ROUNDS", rounds)
    for controls, heads in (((), "3 heads"), (CONTROLS, "6 heads, controls included")):
        report = report_of(0.9, 6, controls=controls)
        expected = f"position scores of {heads}: weights by displacement were not fitted to the end"
        assert (expected in " ".join(report.not_covered)) == (rounds == 0)
