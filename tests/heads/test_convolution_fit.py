import numpy as np
import pytest
import torch
from tests.heads.reference_statistics import reference_convolution, reference_error
from tests.heads.statistics_cases import within

from convattn.heads import convolution_fit as convolution
from convattn.heads.convolution_fit import ConvolutionFit
from convattn.heads.jackknife import explained

CASES = [((5, 4), 3), ((7,), 5), ((3, 5), 1)]


def fitted(grid, kernel_size):
    """A fit in batches, and squared errors and squares of every image held out, by numpy."""
    draw = torch.Generator().manual_seed(0)
    positions = int(np.prod(grid))
    x = torch.randn(60, positions, 3, generator=draw, dtype=torch.float64)
    y = (x + x.roll(1, 1)) @ torch.randn(3, 2, generator=draw, dtype=torch.float64)
    y += torch.randn(y.shape, generator=draw, dtype=torch.float64)
    fit = ConvolutionFit(grid, kernel_size)
    for start in range(0, 40, 10):
        fit.fit(x[start : start + 10], y[start : start + 10])
    for start in range(40, 60, 10):
        fit.score(x[start : start + 10], y[start : start + 10])
    parts = (part.numpy() for part in (x[:40], y[:40], x[40:], y[40:]))
    return fit, *reference_convolution(*parts, grid, kernel_size)


@pytest.mark.parametrize(("grid", "kernel_size"), CASES)
def test_convolution_score_is_that_of_least_squares(grid, kernel_size):
    fit, errors, totals = fitted(grid, kernel_size)
    hi = 1 - errors.sum() / totals.sum()
    # The ridge moves the score by far less than the images do.
    assert abs(fit.estimate().value - hi) < 0.1 * reference_error(errors, totals, 10)


@pytest.mark.parametrize("groups", [3, 10])
@pytest.mark.parametrize(("grid", "kernel_size"), CASES)
def test_without_a_ridge_only_rounding_is_between_the_score_and_least_squares(
    grid, kernel_size, groups, monkeypatch
):
    monkeypatch.setattr(convolution, "_RIDGES", torch.zeros(1))
    fit, errors, totals = fitted(grid, kernel_size)
    found, terms = (
        explained(fit.squares, groups),
        40 * int(np.prod(grid)) * 3 * kernel_size ** len(grid),
    )
    within(found.value, 1 - errors.sum() / totals.sum(), terms)
    within(found.error, reference_error(errors, totals, groups), terms)


def test_convolution_score_knows_a_convolution_and_noise():
    draw = torch.Generator().manual_seed(0)
    conv = torch.nn.Conv2d(4, 6, 3, padding=1)
    images = torch.randn(20, 4, 7, 7, generator=draw)
    with torch.no_grad():
        made = conv(images).flatten(2).mT
    x = images.flatten(2).mT
    for y, low, high in (
        (made, 1 - 1e-6, 1.0),
        (torch.randn(made.shape, generator=draw), -1.0, 0.02),
    ):
        fit = ConvolutionFit((7, 7), 3)
        fit.fit(x[:16], y[:16])
        fit.score(x[16:], y[16:])
        assert low <= fit.estimate().value <= high


def test_fewer_components_explain_less():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(30, 25, 80, generator=draw) * torch.linspace(2, 0.1, 80)
    y = x @ torch.randn(80, 5, generator=draw)
    fit = ConvolutionFit((5, 5), 3)
    fit.fit(x[:20], y[:20])
    fit.score(x[20:], y[20:])
    assert fit.basis.shape == (80, 288 // 9)
    assert 0.5 < fit.estimate().value < 0.99


def test_components_are_no_more_than_the_first_batch_determines():
    fit = ConvolutionFit((3, 3), 3)
    x = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0))
    fit.fit(x, x)
    assert fit.basis.shape == (64, 2 * 9)
