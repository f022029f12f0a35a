"""Time over the number of pixels: every module is checked where it is this library's, and its exponent is fitted."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.cases import scaling
from benchmarks.cases.scaling import MODULES, LongConvolution, ScalingCase
from benchmarks.page import figure_of
from benchmarks.report import exponents
from benchmarks.runner import run_case
from benchmarks.setting import Setting

IMAGES = ScalingCase(
    name="tiny-5",
    group="tiny",
    modules=("separable", "fourier", "shift"),
    dims=2,
    channels=6,
    heads=3,
    size=5,
    memory=False,
)
SEQUENCES = replace(
    IMAGES, modules=("hard", "soft", "conv", "long conv"), dims=1, size=23, training=True
)


@pytest.mark.parametrize(
    "case", [IMAGES, replace(SEQUENCES, training=False), SEQUENCES], ids=["2-D", "1-D", "training"]
)
def test_what_is_ours_is_checked_and_all_is_timed(case):
    result = run_case(case, Setting(), rounds=2)
    assert result.passed
    assert [item.contender for item in result.measurements] == list(case.modules)
    for item in result.measurements:
        assert len(item.seconds) == 2
        assert (item.check is None) == ("conv" in item.contender)
        assert item.note
        assert item.path == item.contender or case.dims == 1


def test_several_sizes_have_exponents_and_a_figure():
    results = [run_case(replace(IMAGES, size=size), Setting(), rounds=1) for size in (5, 7)]
    assert figure_of(results) == "tiny"
    assert figure_of(results[:1]) is None
    assert [line.partition(":")[0] for line in exponents(results)] == list(IMAGES.modules)


def test_wrong_path_has_no_times_and_no_exponent(monkeypatch):
    def wrong(case):
        module = MODULES["separable"](case)
        module.register_forward_hook(lambda *args: args[2] * 1.0001)
        return module

    monkeypatch.setattr(scaling, "MODULES", {**MODULES, "separable": wrong})
    results = [
        run_case(replace(IMAGES, size=size, modules=("separable",)), Setting(), rounds=1)
        for size in (5, 7)
    ]
    assert not any(result.passed for result in results)
    assert all(item.seconds == () for result in results for item in result.measurements)
    assert exponents(results) == []


def test_long_convolution_is_that_of_its_taps():
    module, x = LongConvolution(3, 11).double(), torch.randn(2, 3, 11, dtype=torch.float64)
    taps = module.kernel.flip(-1)[:, None]
    expected = nn.functional.conv1d(nn.functional.pad(x, (10, 0)), taps, groups=3)
    assert (module(x) - expected).abs().max() < 1e-12
