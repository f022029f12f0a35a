"""Kernels from mean weights: heads that are the softmax of a function of the displacement are found again."""

from itertools import product

import pytest
import torch
from tests.adapters.report_cases import measured_layer

from convattn.adapters.replacement.kernel_fit import fit_kernels
from convattn.adapters.replacement.measured import measured_heads

SCORES = {
    "soft": (0.3, (1, 0)),
    "sharp": (3.0, (-1, 1)),
    "hard": (20.0, (1, 2)),
    "harder than float32 tells": (200.0, (0, 1)),
    "at random": (0.0, (0, 0)),
}


def softmax_head(grid, sharpness, centre, noise=0.5):
    """Displacements, mean weights, and the weights themselves, (queries, keys), of softmax over existing positions."""
    torch.manual_seed(0)
    shifts = list(product(*(range(1 - size, size) for size in grid)))
    centre = centre[: len(grid)]
    score = {
        shift: -sharpness * sum((a - b) ** 2 for a, b in zip(shift, centre, strict=True))
        + noise * torch.randn(()).item()
        for shift in shifts
    }
    cells = list(product(*map(range, grid)))
    pairs = [[tuple(k - q for q, k in zip(a, b, strict=True)) for b in cells] for a in cells]
    weights = torch.tensor([[score[pair] for pair in row] for row in pairs], dtype=torch.float64).softmax(1)
    sums, counts = dict.fromkeys(shifts, 0.0), dict.fromkeys(shifts, 0)
    for row, col in product(range(len(cells)), repeat=2):
        sums[pairs[row][col]] += weights[row, col].item()
        counts[pairs[row][col]] += 1
    mean = torch.tensor([sums[shift] / counts[shift] for shift in shifts], dtype=torch.float64)
    return torch.tensor(shifts), mean, weights, pairs


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("grid", [(5, 7), (8, 8), (11,)], ids=str)
def test_softmax_of_a_function_of_the_displacement_is_found_again(name, grid):
    shifts, mean, weights, pairs = softmax_head(grid, *SCORES[name])
    kernel = fit_kernels(mean[None], shifts, grid)[0]
    tap = {tuple(shift.tolist()): weight for shift, weight in zip(shifts, kernel, strict=True)}
    made = torch.tensor([[tap[pair] for pair in row] for row in pairs], dtype=torch.float64)
    made = made / made.sum(1, keepdim=True)
    assert (made - weights).abs().max() < 1e-6  # taps whose weight, summed over queries, is 1e-8 count as settled
    assert kernel.sum().item() == pytest.approx(1, abs=1e-12)


def test_mean_weights_themselves_are_no_kernel():
    """What the fit is for: one column on, a head looks at its own patch in the last column, which is in the mean."""
    shifts, mean, _, _ = softmax_head((8, 8), 20.0, (0, 1))
    own = shifts.tolist().index([0, 0])
    assert mean[own].item() == pytest.approx(1 / 8)
    assert fit_kernels(mean[None], shifts, (8, 8))[0, own] < 1e-6


def test_each_head_is_fitted_by_itself():
    drawn = [softmax_head((5, 7), *score) for score in SCORES.values()]
    together = fit_kernels(torch.stack([mean for _, mean, _, _ in drawn]), drawn[0][0], (5, 7))
    for row, (shifts, mean, _, _) in zip(together, drawn, strict=True):
        alone = fit_kernels(mean[None], shifts, (5, 7))[0]
        assert (row - alone).abs().max() < 1e-12


def test_a_scale_does_not_matter():
    """The share of prefix tokens is not in the kernel."""
    shifts, mean, _, _ = softmax_head((5, 7), 0.3, (1, 0))
    one, other = (fit_kernels(scale * mean[None], shifts, (5, 7)) for scale in (1.0, 0.25))
    assert (one - other).abs().max() < 1e-12


def test_boxes_contain_no_displacement_and_nearly_all_weight():
    layer = measured_layer((8, 8), [softmax_head((8, 8), *SCORES[name])[2] for name in ("soft", "hard")])
    small, large = measured_heads(layer, (0, 1))
    assert (small.heads, large.heads) == ((1,), (0,))
    assert small.first == (0, 0)
    assert small.kernel.shape == (1, 2, 3)
    for group in (small, large):
        assert all(first <= 0 < first + size for first, size in zip(group.first, group.kernel.shape[1:], strict=True))
        assert (group.kernel.flatten(1).sum(1) - 1).abs().max() < 1e-12


def test_heads_of_like_size_run_together():
    hard = [softmax_head((8, 8), 20.0, centre)[2] for centre in ((0, 1), (1, 0), (3, 3))]
    small, large = measured_heads(measured_layer((8, 8), hard), (0, 1, 2))
    assert (small.heads, small.kernel.shape) == ((0, 1), (2, 2, 2))
    assert (large.heads, large.kernel.shape) == ((2,), (1, 4, 4))
