"""Networks and images that ask for trouble: what comes out is right or says what it does not show; nothing changes."""

import importlib
from itertools import product

import pytest
import torch
from tests.convert.network.hostile_cases import (
    Assigning,
    Borrowing,
    Chaotic,
    Clamping,
    Counting,
    Drawing,
    Growing,
    Listed,
    Looking,
    Masking,
    Overwriting,
    Remembering,
    Spectrum,
    Unfolding,
    Writing,
)
from tests.convert.network.network_cases import Called, hard, images, unchanged
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

from convattn import network_to_attention, network_to_conv
from convattn.budget import assert_within_budget, references
from convattn.convert import freeze
from convattn.errors import ArgumentError, ConversionError, UnsupportedModelError
from convattn.layers import RelativeAttention2d


def conv():
    torch.manual_seed(0)
    return nn.Conv2d(3, 4, 3)


def attempt(network, x, **options):
    """Converts a network; asserts that it, the images and the random state are left as they were."""
    given = x if isinstance(x, tuple) else tuple(x.values()) if isinstance(x, dict) else (x,)
    with unchanged(network, *given):
        return network_to_attention(network, images=x, **options)


CHANGING = [Counting, Remembering, Overwriting, Drawing]


@pytest.mark.parametrize(
    ("kind", "convert"),
    [(Growing, network_to_attention), *product(CHANGING, (network_to_attention, network_to_conv))],
)
def test_networks_that_change_are_run_on_copies_from_the_same_start(kind, convert):
    to_conv = convert is network_to_conv
    network, x = kind(hard(conv()) if to_conv else conv()), images(6, 3, 7, 9)
    with unchanged(network, x):
        made, certificate = convert(network, images=x)
    assert certificate.passed
    assert type(made.layer) is (nn.Conv2d if to_conv else RelativeAttention2d)
    # runs that had seen each other would differ by ones
    assert certificate.rounding < 1e-5 * certificate.largest
    assert getattr(network, "seen", []) == getattr(made, "seen", []) == []


@pytest.mark.parametrize("impl", ["auto", "separable"])
def test_a_weight_that_the_network_changes_is_the_one_compared(impl):
    made, certificate = attempt(Clamping(conv()), images(2, 3, 7, 9), impl=impl)
    assert certificate.passed
    assert certificate.rounding < 1e-5 * certificate.largest
    again, back = network_to_conv(made, images=images(2, 3, 7, 9))
    assert back.passed
    assert back.rounding < 1e-5 * back.largest
    assert isinstance(again.layer, nn.Conv2d)


def test_a_change_that_attention_does_not_take_fails():
    x = images(2, 3, 7, 9)
    assert attempt(nn.Sequential(conv()), x, sharpness=200.0)[1].passed
    assert not attempt(Assigning(conv()), x, sharpness=200.0)[1].passed


TOO_FAR = (
    "the network as a whole: rounding, random numbers or state kept between runs "
    "change its outputs too much to compare"
)


@pytest.mark.parametrize(
    ("impl", "moved", "verdicts"),
    [
        ("auto", False, ("exact",)),  # the same convolution
        ("separable", False, ("exact", "different")),  # some processors give the same bits
        ("auto", True, ("different",)),
        ("separable", True, ("different",)),
    ],
)
def test_a_network_that_rounding_moves_too_far_is_exact_only_bit_for_bit(impl, moved, verdicts):
    _, certificate = attempt(Chaotic(conv(), moved=moved), images(2, 3, 7, 9), impl=impl)
    assert certificate.verdict in verdicts
    assert (certificate.measured_error == 0) is (certificate.verdict == "exact")
    assert certificate.rounding > certificate.largest
    assert any(item.startswith(TOO_FAR) for item in certificate.not_covered)


def test_a_network_that_looks_at_its_layers_is_refused():
    with pytest.raises(ConversionError, match="the converted network does not run: AssertionError"):
        attempt(Looking(conv()), images(2, 3, 7, 9))


@pytest.mark.parametrize(
    "network",
    [Listed(nn.Conv2d(4, 5, 1), conv()), Borrowing(conv())],
    ids=lambda network: type(network).__name__,
)
def test_convolutions_that_are_no_modules_of_the_network_are_named(network):
    _, certificate = attempt(network, images(2, 3, 7, 9))
    assert certificate.passed
    assert [(item.name, item.kind) for item in certificate.left_alone] == [
        ("", type(network).__name__)
    ]
    reason = "it calls a convolution with a computed weight, and holds others; move the call into"
    assert certificate.left_alone[0].reason.startswith(reason)
    place = f"  left alone      the network itself ({type(network).__name__}): {reason}"
    assert place in certificate.summary()


def test_a_convolution_out_of_other_operations_is_not_seen():
    """As the docstring states."""
    made, certificate = attempt(Unfolding(conv()), images(2, 3, 7, 9))
    assert certificate.passed
    assert certificate.left_alone == ()
    assert isinstance(made.layer, RelativeAttention2d)


def test_complex_results_are_compared():
    _, certificate = attempt(Spectrum(conv()), images(2, 3, 7, 9))
    assert certificate.passed
    assert certificate.reference == "float64"
    assert certificate.measured_error <= certificate.rounding


@pytest.mark.parametrize("build", [lambda: Masking(3, 4, 3), lambda: Writing(conv())])
def test_weights_that_are_written_in_each_run_stay_so(build):
    network, x = nn.Sequential(build()), images(2, 3, 7, 9)
    made, certificate = attempt(network, x)
    assert certificate.verdict == "exact"
    for one in (network, made):
        for parameter in one.parameters():
            parameter.data *= 3
    hi, lows = references(lambda network, x: network(x), network, x)
    assert_within_budget(made(x), hi, lows)


def test_a_traced_graph_is_converted():
    network = torch.fx.symbolic_trace(nn.Sequential(conv(), nn.ReLU()))
    made, certificate = attempt(network, images(2, 3, 7, 9))
    assert certificate.passed
    assert isinstance(made.get_submodule("0"), RelativeAttention2d)


def test_a_network_on_several_devices_is_refused_with_the_one_to_convert():
    with pytest.raises(
        UnsupportedModelError, match="it runs on several devices; convert its `module`"
    ):
        attempt(DataParallel(nn.Sequential(conv())), images(2, 3, 7, 9))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_network_that_trains_on_several_devices_is_refused(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        network = DistributedDataParallel(nn.Sequential(conv()))
        with pytest.raises(
            UnsupportedModelError,
            match=r"itself .DistributedDataParallel.: .* convert its `module`",
        ):
            attempt(network, images(2, 3, 7, 9))
        sharded = fully_shard(nn.Sequential(conv()), mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(UnsupportedModelError, match="it is sharded; convert the network first"):
            attempt(sharded, images(2, 3, 7, 9))
    finally:
        torch.distributed.destroy_process_group()


def test_nan_in_the_images_is_said_to_be_that():
    x = images(2, 3, 7, 9)
    x[1, 2, 3, 4] = torch.nan
    with pytest.raises(ArgumentError, match="images must hold no NaN, but some do"):
        network_to_attention(nn.Sequential(conv()), images=x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_measured_against_float64(dtype):
    network = nn.Sequential(conv(), nn.ReLU(), nn.Conv2d(4, 5, 3)).to(dtype)
    made, certificate = attempt(network, images(2, 3, 9, 11, dtype=dtype))
    assert certificate.passed
    assert certificate.reference == "float64"
    assert made[2].bias.dtype == dtype


def test_results_that_are_not_finite_are_not_passed():
    x = (images(2, 3, 7, 9) * 60000).half()
    _, certificate = attempt(nn.Sequential(conv().to(x.dtype)), x)
    assert not certificate.passed
    assert "the network as a whole: its outputs are not finite" in certificate.not_covered


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            images(0, 3, 7, 9),
            r"images must be a batch of at least one, but are float32 of shape \(0, 3, 7, 9\)",
        ),
        (
            images(1, 3, 7, 9, dtype=torch.float64),
            r"on the 1 image given \(first batch: float64 of shape \(.*\)\) it raised Runtime.*Input type \(double\)",
        ),
        (
            torch.ones(1, 3, 7, 9, dtype=torch.long),
            r"on the 1 image given \(first batch: int64 of shape \(.*\)\) it raised RuntimeError: Input type \(long",
        ),
        (
            torch.ones(1, 3, 7, 9, device="meta"),
            "images must be tensors with values, but one is on the meta device",
        ),
        ((images(1, 3, 7, 9), 3), r"on the images given \(.*\) it raised TypeError"),
        (
            {"y": images(1, 3, 7, 9)},
            r"on the arguments given \(.*\) it raised TypeError: .* unexpected keyword argument 'y'",
        ),
    ],
)
def test_images_that_the_network_does_not_take(x, message):
    with pytest.raises(ArgumentError, match=message):
        attempt(nn.Sequential(conv()), x)


def test_autocast_around_a_conversion_changes_nothing():
    network, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1)),
        torch.randn(2, 3, 7, 9),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made, certificate = network_to_attention(network, images=x)
        assert network_to_conv(made, images=x)[1].passed
    assert certificate == network_to_attention(network, images=x)[1]
    assert certificate.passed


def test_the_random_state_is_kept_where_a_conversion_fails():
    with pytest.raises(UnsupportedModelError):
        attempt(nn.Sequential(conv(), nn.LazyLinear(3)), images(1, 3, 7, 9))
    with pytest.raises(ArgumentError):
        attempt(nn.Sequential(conv()), images(1, 3, 2, 2))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_may_be_called_by_name_and_on_one_image(dims):
    def call(layer, x):
        return torch.stack([layer(input=image) for image in x])

    conv, x = (
        (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](3, 4, 3, padding=1),
        images(2, 3, *(7, 8, 5)[:dims]),
    )
    made, there = network_to_attention(Called(conv, call), images=x)
    again, back = network_to_conv(made, images=x)
    assert there.passed
    assert back.passed
    assert there.layers[0].path == "shift"
    assert torch.equal(again.layer.weight, conv.weight)
    with torch.no_grad():
        assert torch.equal(freeze(made, images=x)(x), made(x))


def test_a_misread_convolution_does_not_pass_for_rounding(monkeypatch):
    module = importlib.import_module("convattn.convert.convolutions")
    put = module.put_tensors

    def misread(*arguments):
        conv = put(*arguments)
        conv.weight = nn.Parameter(conv.weight * 1.001)
        return conv

    monkeypatch.setattr(module, "put_tensors", misread)
    torch.manual_seed(0)
    _, certificate = network_to_attention(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), images=images(2, 3, 7, 8)
    )
    assert not certificate.passed
    told = "the network as a whole: with its convolutions as they were read, it computes something else"
    assert told in certificate.not_covered
