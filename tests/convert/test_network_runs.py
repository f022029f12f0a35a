"""Runs of copies of a network."""

import torch
from torch import nn

from convattn.convert.network_runs import Arguments, run_source


def test_runs_of_a_source_differ_by_rounding_alone():
    torch.manual_seed(0)
    images = torch.randn(2, 3, 7, 9)
    plain, *moved = run_source(nn.Conv2d(3, 4, 3), [Arguments((images,), {}, "")])
    assert len(moved) >= 3
    for run in moved:
        assert 0 < torch.dist(run.numbers[""], plain.numbers[""], torch.inf) < 1e-5
