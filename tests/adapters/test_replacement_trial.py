"""A network before and after its heads were replaced: what the trial counts and measures, by hand."""

from types import SimpleNamespace

import pytest
import torch
from tests.adapters.report_cases import every_head, measured, outputs, words
from torch import nn

from convattn.convert.surgery import read_arguments
from convattn.heads import replace as trial
from convattn.heads.replace import compare_on_images, replace_convolutional_heads


def test_changes_and_predictions_are_those_of_both_outputs():
    network, _, report = measured("bert")
    x = words(count=400)
    made, record = replace_convolutional_heads(network, report, heads=every_head(report), images=x)
    # In the trial's batches: torch may round the same words otherwise in a larger one.
    batches = x.split(record.trial.batch)
    before, after = (
        torch.cat([outputs(net, batch) for batch in batches]).double() for net in (network, made)
    )
    changed = (before.argmax(-1) != after.argmax(-1)).sum()
    assert changed > 0
    assert (record.trial.predictions, record.trial.predictions_changed) == (
        before[..., 0].numel(),
        changed,
    )
    assert (record.trial.images, record.trial.outputs) == (len(before), before[0].numel())
    assert record.trial.largest_change == (after - before).abs().max()
    # Two sums of n squares each err by at most n roundings.
    rounding = 2 * before.numel() * torch.finfo(torch.float64).eps
    assert record.trial.relative_change == pytest.approx(
        ((after - before).norm() / before.norm()).item(), rel=rounding
    )


def test_times_are_medians_for_an_image(monkeypatch):
    """Each of the two calls that are slow, of the seven timed, takes eight times as long."""
    clock = SimpleNamespace(now=0.0)

    class Timed(nn.Module):
        def __init__(self, seconds):
            super().__init__()
            self.seconds, self.calls = seconds, 0

        def forward(self, x):
            self.calls += 1
            clock.now += self.seconds * (8 if self.calls % 3 == 0 else 1)
            return x

    before, after, x = Timed(0.5), Timed(0.125), torch.randn(4, 3)
    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    found = compare_on_images(before, after, read_arguments(before, x))
    assert (found.milliseconds_before, found.milliseconds_after) == (125.0, 31.25)
    assert (found.rounds, found.batch, found.threads) == (7, 4, torch.get_num_threads())
    assert found.speedup == 4
