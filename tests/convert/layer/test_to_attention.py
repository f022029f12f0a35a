import copy
import math

import numpy as np
import pytest
import torch
from tests.testing.convolutions import assert_convolves, convolve
from torch import nn

from convattn.budget import budget, roundings
from convattn.convert import conv_to_attention
from convattn.encodings import Shift, off_centre_mass
from convattn.errors import ArgumentError
from convattn.layers import RelativeAttention2d

ALPHAS = [1, 1.5, 2.5, 4, 6, 8, 12, 16, 20, 30, 46, 80, 200]


def drawn(conv):
    """Gives a convolution normal weights, the same each time."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return conv


def images(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )


@pytest.mark.parametrize(
    "conv",
    [nn.Conv1d(2, 3, 5), nn.Conv2d(2, 3, (3, 5)), nn.ConvTranspose2d(2, 3, (3, 2), stride=2)],
    ids=repr,
)
def test_one_head_per_tap_centred_on_it(conv):
    layer, certificate = conv_to_attention(conv)
    assert layer.num_heads == certificate.heads == math.prod(conv.kernel_size)
    weights = layer.attention((5,) * layer.dims)
    assert weights.unique().tolist() == [0, 1]
    assert (weights.flatten(-layer.dims).sum(-1) == 1).all()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_by_default_heads_are_hard(dtype):
    layer, certificate = conv_to_attention(drawn(nn.Conv2d(3, 5, 3, padding=1)).to(dtype))
    assert (certificate.exact, certificate.leak, certificate.sharpness) == (True, 0, None)
    assert "hard: all attention of each at one displacement" in certificate.summary()
    assert certificate.passed
    assert layer.values.weight.dtype == dtype
    assert isinstance(layer.encoding, Shift)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_soft_heads_are_held_in_single_precision_at_least(dtype):
    layer, certificate = conv_to_attention(
        nn.Conv2d(3, 5, 3, padding=300, dilation=300, dtype=dtype), sharpness=5.0
    )
    assert layer.encoding.centres.dtype == torch.promote_types(dtype, torch.float32)
    assert layer.encoding.centres.unique().tolist() == [-300, 0, 300]
    assert certificate.sharpness == pytest.approx(5.0, rel=1e-6)


def test_device_mode_and_the_convolution_itself_are_kept():
    conv = nn.Conv2d(3, 5, 3).eval()
    before = copy.deepcopy(conv.state_dict())
    layer, _ = conv_to_attention(conv)
    assert not layer.training
    with torch.no_grad():
        layer.values.weight.zero_()
    assert all(torch.equal(conv.state_dict()[name], tensor) for name, tensor in before.items())


def test_many_terms_for_a_few_outputs_round_as_matrix_products_of_that_shape_do():
    for seed in range(8):
        torch.manual_seed(seed)
        _, certificate = conv_to_attention(nn.Conv2d(128, 8, 3, padding=1))
        assert certificate.verdict == "exact"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "conv",
    [nn.Conv1d(3, 5, 5), nn.Conv2d(3, 5, 3, padding=1), nn.Conv3d(3, 5, (2, 3, 1))],
    ids=repr,
)
def test_measured_error_is_within_the_a_priori_bound(conv, dtype):
    """For α from 1 to 200, on other images than the certificate's."""
    conv = drawn(conv).to(dtype)
    x = images(2, 3, *(7, 11, 5)[: len(conv.kernel_size)], dtype=dtype)
    hi = copy.deepcopy(conv).double()(x.double())
    rounding = budget(hi, roundings(convolve, conv, x))
    errors = []
    for alpha in ALPHAS:
        layer, certificate = conv_to_attention(conv, sharpness=float(alpha))
        assert certificate.verdict != "failed"
        errors.append((layer(x).double() - hi).abs().max().item())
        bound = certificate.bound_per_unit * x.abs().max().item()
        assert errors[-1] <= bound + rounding
        leak = 0.0 if certificate.exact else lattice_sum(alpha, layer.dims)
        # α is rounded three times by eps / 2, and e^(−α‖δ‖²) changes by α‖δ‖² as much, ‖δ‖² on average below 2
        rounded = (4 * alpha + 16) * torch.finfo(dtype).eps
        assert certificate.leak == pytest.approx(min(1, leak), rel=rounded, abs=0)
        assert certificate.measured_error <= certificate.bound + certificate.rounding
    assert errors[0] > 1e3 * rounding, "at α = 1 the heads are soft"
    assert errors[-1] <= rounding, "at α = 200 only rounding is left"


def lattice_sum(alpha, dims):
    """Sums e^(−α‖δ‖²) over all δ ≠ 0 of a lattice, by brute force."""
    reach = math.ceil(math.sqrt(40 / alpha)) + 1
    steps = np.arange(-reach, reach + 1.0)
    squares = sum(np.meshgrid(*[steps**2] * dims, indexing="ij"))
    terms = np.exp(-alpha * np.sort(squares[squares > 0])[::-1])
    return math.fsum(terms)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("alpha", [0.03, 0.5, 1.0, 3.0, math.pi, 3.2, 5.0, 20.0, 46.0, 200.0])
def test_off_centre_mass_is_the_lattice_sum(alpha, dims):
    assert off_centre_mass(alpha, dims) == pytest.approx(lattice_sum(alpha, dims), rel=1e-12, abs=0)


@pytest.mark.parametrize("sharpness", [0.0, -1.0, math.nan])
def test_off_centre_mass_needs_a_positive_sharpness(sharpness):
    with pytest.raises(ArgumentError, match="sharpness must be above 0"):
        off_centre_mass(sharpness, 2)


def test_off_centre_mass_of_very_flat_heads_is_finite():
    assert off_centre_mass(1e-12, 2) == pytest.approx(math.pi * 1e12)
    assert math.isfinite(off_centre_mass(1e-300, 3))


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 7), (7, 5)])
def test_heads_as_wide_as_the_fewer_channels_compute_any_kernel(inputs, outputs):
    """Theorem 1: heads of width D_h, whose matrices are W_out W_val, compute min(D_h, D_out) output channels."""
    conv, x = drawn(nn.Conv2d(inputs, outputs, 3, padding=1)), images(2, inputs, 7, 11)
    full, _ = conv_to_attention(conv)
    width = min(inputs, outputs)
    layer = RelativeAttention2d(
        inputs, outputs, 3, padding=1, num_heads=9, encoding=full.encoding, head_width=width
    )
    left, scale, right = torch.linalg.svd(full.values.maps().detach(), full_matrices=False)
    with torch.no_grad():
        layer.bias.copy_(conv.bias)
        layer.values.value.copy_(right)
        layer.values.output.copy_(left * scale[:, None])
    assert_convolves(layer(x), conv, x)
    layer.values.output.data[:, :, -1] = 0
    with pytest.raises(AssertionError):
        assert_convolves(layer(x), conv, x)


@pytest.mark.parametrize("sharpness", [0.0, -5.0, math.inf, math.nan, 1e-60, 1e77])
def test_sharpness_out_of_range_is_refused(sharpness):
    with pytest.raises(
        ArgumentError, match=r"sharpness must be (finite|a positive finite number in .*), but is"
    ):
        conv_to_attention(nn.Conv2d(3, 5, 3), sharpness=sharpness)


def test_sharp_heads_learn_their_values_and_softer_ones_their_centres():
    x = images(2, 3, 7, 11)
    for sharpness, moves in ((None, False), (5.0, True)):
        layer, _ = conv_to_attention(drawn(nn.Conv2d(3, 5, 3, padding=1)), sharpness=sharpness)
        layer(x).square().sum().backward()
        assert layer.values.weight.grad.abs().max() > 0
        assert bool(sum(p.grad.abs().max() for p in layer.encoding.parameters())) == moves
