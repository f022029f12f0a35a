import numpy as np
import pytest
import torch
from tests.analysis.reference_statistics import reference_convolution

from convattn.analysis.measure.convolution import ConvolutionFit


@pytest.mark.parametrize(("grid", "kernel_size"), [((5, 4), 3), ((7,), 5), ((3, 5), 1)])
def test_convolution_score_is_that_of_least_squares(grid, kernel_size):
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
    hi = reference_convolution(x[:40].numpy(), y[:40].numpy(), x[40:].numpy(), y[40:].numpy(), grid, kernel_size)
    # The ridge moves the score by far less than the images do.
    assert abs(fit.estimate(10).value - hi) < 0.1 * fit.estimate(10).error
    assert fit.components == 3
    assert fit.images == (40, 20)


def test_convolution_score_knows_a_convolution_and_noise():
    draw = torch.Generator().manual_seed(0)
    conv = torch.nn.Conv2d(4, 6, 3, padding=1)
    images = torch.randn(20, 4, 7, 7, generator=draw)
    with torch.no_grad():
        made = conv(images).flatten(2).mT
    x = images.flatten(2).mT
    for y, low, high in ((made, 1 - 1e-6, 1.0), (torch.randn(made.shape, generator=draw), -1.0, 0.02)):
        fit = ConvolutionFit((7, 7), 3)
        fit.fit(x[:16], y[:16])
        fit.score(x[16:], y[16:])
        assert low <= fit.estimate(4).value <= high


def test_fewer_components_explain_less():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(30, 25, 80, generator=draw) * torch.linspace(2, 0.1, 80)
    y = x @ torch.randn(80, 5, generator=draw)
    fit = ConvolutionFit((5, 5), 3)
    fit.fit(x[:20], y[:20])
    fit.score(x[20:], y[20:])
    assert fit.components == 32
    assert 0.5 < fit.estimate(4).value < 0.99


def test_components_are_no_more_than_the_first_batch_determines():
    fit = ConvolutionFit((3, 3), 3)
    x = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0))
    fit.fit(x, x)
    assert fit.components == 2 * 9
