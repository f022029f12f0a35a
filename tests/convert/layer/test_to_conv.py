"""The way back: kernels, windows and bounds."""

import copy
import sys
from math import prod

import pytest
import torch
from torch import nn

from convattn.budget import assert_within_budget, roundings
from convattn.convert import attention_to_conv, conv_to_attention, to_conv
from convattn.convert.hard_heads import HardHeads
from convattn.encodings import ENCODINGS, LearnedTable, Quadratic, create_encoding
from convattn.errors import ArgumentError
from convattn.layers import (
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)

LAYERS = {1: RelativeAttention1d, 2: RelativeAttention2d, 3: RelativeAttention3d}
SIZES = {1: (11,), 2: (5, 7), 3: (3, 4, 5)}


def seeded(kind, *arguments, **options):
    torch.manual_seed(0)
    return kind(*arguments, **options)


def operator(module, channels, spatial):
    """The matrix of a linear map of images, (outputs, queries, channels, keys), by its columns."""
    linear = copy.deepcopy(module).double()
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    count = channels * prod(spatial)
    columns = linear(torch.eye(count, dtype=torch.float64).view(count, channels, *spatial)).detach()
    return columns.flatten(2).movedim(0, -1).unflatten(-1, (channels, -1))


def largest_error(layer, conv, spatial):
    """The largest output difference over all images of absolute value at most 1."""
    exact = copy.deepcopy(layer)
    exact.impl = "reference" if layer.content is not None else "dense"
    difference = operator(exact, layer.in_channels, spatial) - operator(
        conv, layer.in_channels, spatial
    )
    return difference.abs().sum((2, 3)).max().item()


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "name", [name for name in ENCODINGS if name != "shift"]
)  # whose conversion is exact
def test_every_encoding_is_within_its_bound_for_every_image(name, dims):
    layer = seeded(LAYERS[dims], 2, 3, num_heads=4, encoding=name, dtype=torch.float64)
    conv, certificate = attention_to_conv(layer, spatial=SIZES[dims])
    assert certificate.direction == "attention_to_conv"
    assert certificate.verdict != "failed"
    assert not certificate.exact
    assert certificate.check_shape == (2, 2, *SIZES[dims])
    worst = largest_error(layer, conv, SIZES[dims])
    assert 0 < worst <= certificate.bound_per_unit * (1 + 1e-9)
    assert certificate.not_covered == (
        f"images of other sizes than {' x '.join(map(str, SIZES[dims]))}",
    )


GEOMETRIES = {
    "stride": {"kernel_size": 3, "stride": 2, "padding": 1},
    "groups": {"groups": 2, "kernel_size": (3, 5), "padding": (1, 2)},
    "dilation": {"kernel_size": 3, "dilation": 2, "padding": 2},
    "zeros": {"kernel_size": (2, 3), "padding": 2},
    "reflect": {"kernel_size": 3, "padding": 2, "padding_mode": "reflect"},
    "replicate": {"kernel_size": 3, "padding": 2, "padding_mode": "replicate"},
    "circular": {"kernel_size": 3, "padding": 2, "padding_mode": "circular"},
    "unequal padding": {"kernel_size": 1, "padding": [(2, 1), (0, 3)]},
    "cropped": {"padding": [(-1, 0), (0, -2)]},
    "cropped and padded": {
        "kernel_size": 3,
        "padding": [(-1, 2), (1, 1)],
        "padding_mode": "replicate",
    },
    "transposed": {"kernel_size": 3, "input_dilation": 2, "padding": [(1, 2), (1, 1)]},
    "narrow heads": {"head_width": 1},
}
NOT_OF_ODD_SIZES = {"zeros", "unequal padding", "cropped", "cropped and padded"}


@pytest.mark.parametrize("kernel_size", [None, 3, (5, 3)])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_soft_heads_keep_output_sizes_and_bounds(name, kernel_size):
    options = GEOMETRIES[name]
    layer = seeded(RelativeAttention2d, 2, 4, num_heads=3, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.encoding.centres.mul_(0.3)
    spatial = (9, 12)
    if kernel_size is not None and name in NOT_OF_ODD_SIZES:
        with pytest.raises(
            ArgumentError, match="kernel_size must be one with which a torch convolution"
        ):
            attention_to_conv(layer, kernel_size=kernel_size, spatial=spatial)
        return
    mass = 1e-3 if kernel_size is None else None
    conv, certificate = attention_to_conv(
        layer, kernel_size=kernel_size, mass=mass, spatial=spatial
    )
    assert certificate.verdict != "failed"
    assert largest_error(layer, conv, spatial) <= certificate.bound_per_unit * (1 + 1e-9)
    for size in (spatial, (10, 15), (7, 13)):
        x = torch.zeros(1, 2, *size, dtype=torch.float64)
        assert conv(x).shape == layer(x).shape
    assert conv.groups == layer.groups
    if kernel_size is None:
        assert certificate.leak <= 1e-3
    else:
        assert conv.kernel_size == per_axis(kernel_size)


def per_axis(kernel_size):
    return (kernel_size,) * 2 if isinstance(kernel_size, int) else kernel_size


def test_the_bound_is_reached(monkeypatch):
    """One head with zeros around: an image of ones shows all that the convolution misses."""
    encoding = Quadratic(1, 2, centres=[[0.5, -1.0]], sharpness=0.7)
    layer = RelativeAttention2d(
        1, 1, num_heads=1, encoding=encoding, bias=False, dtype=torch.float64
    )
    monkeypatch.setattr(to_conv, "_MODES", ("zeros",))
    for mass in (1e-1, 1e-6):
        conv, certificate = attention_to_conv(layer, mass=mass, spatial=(9, 11))
        assert largest_error(layer, conv, (9, 11)) == pytest.approx(
            certificate.bound_per_unit, rel=1e-9
        )


def test_the_kernel_is_the_attention_of_a_middle_query():
    layer = seeded(
        RelativeAttention2d,
        3,
        5,
        num_heads=4,
        encoding=Quadratic(4, 2, sharpness=2.0),
        dtype=torch.float64,
    )
    with torch.no_grad():
        layer.encoding.centres.clamp_(-1.5, 1.5)
    conv, _ = attention_to_conv(layer, spatial=(31, 31))
    rows, cols = (size // 2 for size in conv.kernel_size)

    def kernel(layer):
        middle = layer.attention((31, 31))[:, 15, 15, 15 - rows : 16 + rows, 15 - cols : 16 + cols]
        return torch.einsum("hrc,hoi->oirc", middle, layer.values.weight)

    assert_within_budget(conv.weight, kernel(layer), roundings(kernel, layer))


def test_more_window_leaves_less_outside(monkeypatch):
    """And so the bound falls. The error on one image may rise, as its parts may have cancelled."""
    layer = seeded(RelativeAttention2d, 3, 5, num_heads=9)
    monkeypatch.setattr(to_conv, "_MODES", ("zeros",))
    found = [attention_to_conv(layer, kernel_size=k, spatial=16)[1] for k in (1, 5, 9, 13)]
    assert [c.leak for c in found] == sorted((c.leak for c in found), reverse=True)
    assert [c.bound for c in found] == sorted((c.bound for c in found), reverse=True)
    assert all(c.verdict == "different" for c in found)
    assert found[3].leak < 0.5 * found[0].leak


def test_the_leak_counts_queries_at_borders():
    """The first query does not see what holds nearly all of the others' attention, and looks outside the window."""
    encoding = LearnedTable(1, 1, extent=8)
    with torch.no_grad():
        encoding.scores.fill_(-20)
        encoding.scores[0, 7 - 1], encoding.scores[0, 7 + 2] = 10, 5
    layer = RelativeAttention1d(1, 1, num_heads=1, encoding=encoding, dtype=torch.float64)
    _, certificate = attention_to_conv(layer, kernel_size=3, spatial=8)
    away = (torch.arange(8) - torch.arange(8)[:, None]).abs() > 1
    assert (layer.attention((8,))[0] * away).sum(1).max() <= certificate.leak <= 1 + 1e-9
    assert certificate.leak == pytest.approx(1)


def test_uniform_attention_is_an_exact_mean_over_the_image():
    layer = seeded(
        RelativeAttention1d,
        2,
        3,
        num_heads=2,
        encoding=LearnedTable(2, 1, extent=16),
        dtype=torch.float64,
    )
    nn.init.zeros_(layer.encoding.scores)
    conv, certificate = attention_to_conv(layer)
    assert certificate.exact
    assert conv.padding_mode == "zeros"
    assert conv.kernel_size == (31,)


def test_unpadded_hard_heads_that_look_out_are_a_replicate_padded_convolution():
    encoding = Quadratic(2, 2, centres=[[-2.0, 0.0], [1.0, 3.0]], sharpness=128.0)
    layer = seeded(RelativeAttention2d, 3, 5, num_heads=2, encoding=encoding)
    conv, certificate = attention_to_conv(layer)
    assert certificate.exact
    assert certificate.passed
    assert (conv.kernel_size, conv.padding, conv.padding_mode) == ((5, 7), (2, 3), "replicate")
    assert torch.equal(conv.weight[:, :, 0, 3], layer.values.weight[0])
    assert torch.count_nonzero(conv.weight) == layer.values.weight.numel()


def test_hard_heads_that_look_past_zero_padding_need_no_other():
    encoding = Quadratic(1, 1, centres=[[3.0]], sharpness=128.0)
    conv, certificate = attention_to_conv(
        RelativeAttention1d(2, 3, num_heads=1, encoding=encoding, kernel_size=3, padding=1)
    )
    assert certificate.exact
    assert (conv.kernel_size, conv.padding, conv.padding_mode) == ((7,), (3,), "zeros")


def test_hard_heads_outside_a_kernel_asked_for_are_missed_and_said():
    conv = seeded(nn.Conv2d, 2, 3, 5, padding=2)
    made, certificate = attention_to_conv(conv_to_attention(conv)[0], kernel_size=3)
    assert made.kernel_size == (3, 3)
    assert torch.equal(made.weight, conv.weight[:, :, 1:4, 1:4])
    assert not certificate.exact
    assert certificate.verdict == "different"
    assert certificate.leak == pytest.approx(1)
    assert certificate.measured_error > 0.1


def test_a_closed_gate_is_a_convolution():
    layer = seeded(
        RelativeAttention2d,
        3,
        5,
        num_heads=4,
        kernel_size=3,
        padding=1,
        gate="sigmoid",
    )
    nn.init.constant_(layer.gate, 30.0)
    _, certificate = attention_to_conv(layer, spatial=(7, 8))
    assert certificate.verdict != "failed"
    nn.init.constant_(layer.gate, 16.0)
    x = torch.randn(2, 3, 7, 8)
    conv, certificate = attention_to_conv(layer, spatial=(7, 8))
    error = (layer(x) - conv(x)).abs().max().item()
    assert error <= certificate.bound_per_unit * x.abs().max().item() + certificate.rounding


def test_mode_learning_dtype_and_the_layer_itself_are_kept():
    layer = (
        seeded(RelativeAttention1d, 2, 3, num_heads=3, bias=False, dropout=0.25).bfloat16().eval()
    )
    layer.values.weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    conv, certificate = attention_to_conv(layer)
    assert (conv.weight.dtype, conv.weight.requires_grad, conv.bias, conv.training) == (
        torch.bfloat16,
        False,
        None,
        False,
    )
    assert certificate.dtype == "bfloat16"
    assert certificate.verdict != "failed"
    assert certificate.not_covered[1].startswith("dropout")
    assert layer.impl == "auto"
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


FAULTS = {
    "swapped taps": lambda kernel: kernel.flip(-1),
    "a leak of 1e-5": lambda kernel: kernel * (1 - 1e-5) + 1e-5 * kernel.roll(1, -1),
    "half precision": lambda kernel: kernel.half().to(kernel.dtype),
    "swapped outputs": lambda kernel: kernel.roll(1, 0),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_wrong_kernel_fails_the_certificate(fault, monkeypatch):
    layer = conv_to_attention(seeded(nn.Conv2d, 3, 5, 3, padding=1))[0]
    kernel = HardHeads.kernel
    assert attention_to_conv(layer)[1].verdict == "exact"
    monkeypatch.setattr(HardHeads, "kernel", lambda *a: fault(kernel(*a)))
    assert attention_to_conv(layer)[1].verdict == "failed"


def test_a_wrong_border_fails_the_certificate(monkeypatch):
    layer, module = (
        conv_to_attention(seeded(nn.Conv2d, 3, 5, 3, padding=1))[0],
        sys.modules[attention_to_conv.__module__],
    )
    build = module.make_convolution

    def replicating(*arguments):
        right = build(*arguments)
        wrong = nn.Conv2d(3, 5, 3, padding=1, padding_mode="replicate")
        wrong.load_state_dict(right.state_dict())
        return wrong

    monkeypatch.setattr(module, "make_convolution", replicating)
    assert attention_to_conv(layer)[1].verdict == "failed"


def test_encodings_of_a_layer_may_be_given():
    """A table as large as the padded image is enough; the size is its own."""
    encoding = create_encoding("learned_axial", 3, 2, extent=(7, 9), width=5)
    layer = seeded(
        RelativeAttention2d, 2, 3, num_heads=3, encoding=encoding, kernel_size=3, padding=1
    )
    _, certificate = attention_to_conv(layer)
    assert certificate.check_shape == (2, 2, 5, 7)
    assert certificate.verdict != "failed"
