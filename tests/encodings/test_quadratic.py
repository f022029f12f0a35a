import pytest
import torch

from convattn.encodings import GeneralizedQuadratic, LinearDistance, Quadratic
from convattn.encodings.quadratic import grid_centres
from convattn.errors import ArgumentError, ShapeError
from convattn.functional import attention_weights, displacement_scores
from convattn.grid import Axis


def test_attention_of_a_quadratic_head_is_the_gaussian():
    """Over a wide grid: mean Δ and variance 1/(2α) per axis, by the moments of the weights (theory §2)."""
    encoding = Quadratic(1, 2, centres=[[2.0, -3.0]], sharpness=0.125).double()
    axes = (Axis(range(30, 31), 67), Axis(range(30, 31), 61))
    weights = attention_weights(
        displacement_scores(encoding.table(axes, torch.float64), axes)
    ).view(67, 61)
    rows, cols = torch.arange(67.0).double() - 30, torch.arange(61.0).double() - 30
    mean_row, mean_col = (weights.sum(1) * rows).sum(), (weights.sum(0) * cols).sum()
    variance = (weights.sum(1) * (rows - mean_row) ** 2).sum()
    # on a lattice the moments of a Gaussian are off by terms of order e^(−π²/α), here e^-79; rounding remains
    few = 67 * 61 * torch.finfo(torch.float64).eps
    assert abs(mean_row - 2) < few * 67
    assert abs(mean_col + 3) < few * 67
    assert abs(variance - 4) < few * 67**2


def test_generalized_quadratic_with_a_round_shape_is_quadratic():
    encoding, points = GeneralizedQuadratic(2, 2).double(), torch.randn(31, 2, dtype=torch.float64)
    with torch.no_grad():
        encoding.shape.copy_(2 * torch.eye(2))
    round_one = Quadratic(2, 2, centres=encoding.centres, sharpness=2.0).double()
    with torch.no_grad():
        round_one.centres.copy_(encoding.centres)
    assert torch.equal(encoding(points), round_one(points))
    assert torch.equal(encoding.precision, 4 * torch.eye(2, dtype=torch.float64).expand(2, 2, 2))


def test_start_is_the_papers():
    torch.manual_seed(0)
    encoding = Quadratic(10_000, 2)
    # the standard deviation of n normal numbers is known to 1/√(2n); four of those
    assert abs(encoding.centres.std().item() / 2 - 1) < 4 / 200
    assert abs(encoding.root_sharpness.std().item() / 0.01 - 1) < 4 / 141
    assert abs(encoding.sharpness.mean().item() - 0.5) < 4 * 0.01 / 100 + 0.01**2


@pytest.mark.parametrize("kind", [Quadratic, GeneralizedQuadratic, LinearDistance])
def test_centres_are_copied_those_of_each_head_or_of_all(kind):
    centres = torch.zeros(2, 2)
    encoding = kind(2, 2, centres=centres)
    centres += 1
    assert encoding.centres.abs().max() == 0
    assert kind(3, 2, centres=[1.0, -2.0]).centres.tolist() == 3 * [[1.0, -2.0]]


def test_what_are_no_centres_is_refused(without_type_checks):
    message = r"centres must be finite numbers of shape \(2, 2\), or \(2,\) for all heads, but is"
    for centres in ([[1.0, 2.0]], [1.0, 2.0, 3.0], torch.zeros(2, 3)):
        with pytest.raises(ShapeError, match=message):
            Quadratic(2, 2, centres=centres)
    with pytest.raises(ArgumentError, match=message):
        Quadratic(2, 2, centres=[[1.0, 2.0], [3.0]])
    with pytest.raises(ArgumentError, match=r"centres must be finite, but is \[\[0.0, nan\]\]"):
        Quadratic(1, 2, centres=[[0.0, torch.nan]])


@pytest.mark.parametrize("side", [1, 3, 5])
def test_grid_of_shifts_is_that_of_a_convolutions_taps(side):
    shifts = torch.tensor(grid_centres(side**2)).float()
    assert torch.equal(
        shifts, (torch.cartesian_prod(torch.arange(side), torch.arange(side)) - side // 2).float()
    )


@pytest.mark.parametrize("heads", [-1, 0, 2, 4, 8, 10, 16])
def test_grid_of_another_number_is_refused(heads):
    with pytest.raises(
        ArgumentError, match=f"heads must be the square of an odd number .* but is {heads}"
    ):
        grid_centres(heads)


@pytest.mark.parametrize("sharpness", [0.0, -1.0, 1e-50, 1e39, 1e77, 1e308, torch.inf, torch.nan])
def test_sharpness_out_of_range_or_of_the_dtype_is_refused(sharpness):
    message = r"sharpness must be (finite|a positive finite number in torch\.float32), but is"
    with pytest.raises(ArgumentError, match=message):
        Quadratic(2, 2, sharpness=sharpness)


def test_wide_range_of_sharpness_in_float64():
    for sharpness in (1e-290, 1e-5, 1.0, 1e290):
        encoding = Quadratic(1, 2).double()
        encoding.sharpness = sharpness
        root = encoding.root_sharpness.item()
        assert abs(root**2 / 2 / sharpness - 1) < 4 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_scores_span_one_feature_more_than_the_axes(dims):
    """Theorem 1 asks for D_p ≥ 3 in two dimensions: a constant aside, scores of all heads span ‖δ‖² and each axis."""
    encoding = Quadratic(11, dims, centres=torch.randn(11, dims).tolist(), sharpness=1.0).double()
    with torch.no_grad():
        encoding.sharpness = torch.rand(11).double() + 0.5
        scores = encoding(torch.randn(31, dims).double())
    varying = scores - scores.mean(1, keepdim=True)
    assert torch.linalg.matrix_rank(varying) == dims + 1
