"""Runs of copies of a network."""

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from convattn.convert.network_runs import Arguments, read_arguments, run_copy, run_source


def test_runs_of_a_source_differ_by_rounding_alone():
    torch.manual_seed(0)
    images = torch.randn(2, 3, 7, 9)
    plain, *moved = run_source(nn.Conv2d(3, 4, 3), [Arguments((images,), {}, "")])
    assert len(moved) >= 3
    for run in moved:
        assert 0 < torch.dist(run.numbers[""], plain.numbers[""], torch.inf) < 1e-5


def test_images_are_counted_also_nested_ones_and_one_without_axes():
    rows = [torch.ones(3), torch.ones(5)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    for images, words in ((rows, "2 images"), (nested, "2 images"), (torch.ones(()), "1 image")):
        assert read_arguments(nn.Tanh(), images).words == f"the {words} given"


def test_a_mode_sees_what_the_network_computes_alone():
    class Names(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    mode = Names()
    run_copy(nn.Tanh(), [Arguments((torch.ones(2, 3),), {}, "", mode)])
    assert mode.names == ["tanh"]
