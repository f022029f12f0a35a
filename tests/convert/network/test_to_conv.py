"""Whole networks on the way back."""

import copy
import sys
from operator import call

import pytest
import torch
from tests.convert.network.network_cases import Called, hard, hooked, images, with_statistics
from torch import nn
from torch.nn import functional as F

from convattn import load_network, save_network
from convattn.budget import assert_within_budget, roundings
from convattn.convert import attention_to_conv, network_to_conv
from convattn.encodings import Quadratic
from convattn.errors import ArgumentError, ConversionError, UnknownNameError
from convattn.layers import RelativeAttention1d, RelativeAttention2d
from convattn.models import AttentionNet

DROPPED = "dropout of attention weights in training, which a convolution does not have"


def network():
    """Convolutions as attention, plain and transposed, each followed by batch normalisation, and one shared."""
    torch.manual_seed(0)
    shared = hard(nn.Conv2d(6, 6, 3, padding=1, groups=3))
    return nn.Sequential(
        hard(nn.Conv2d(3, 6, (3, 2), stride=2, padding=1, bias=False)),
        with_statistics(nn.BatchNorm2d(6)),
        shared,
        nn.ReLU(),
        shared,
        nn.Sequential(
            hard(nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2)),
            with_statistics(nn.BatchNorm2d(4, affine=False)),
        ),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_of_hard_heads_comes_back(dtype):
    model, x = network().to(dtype), images(5, 3, 11, 13, dtype=dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made, record = network_to_conv(model, images=x)
    assert record.exact
    assert record.passed
    assert record.direction == "network_to_conv"
    assert record.measured_error <= record.rounding
    assert (record.top1_changed, record.top1_total) == (0, 5)
    assert [layer.name for layer in record.layers] == ["0", "2", "5.0"]
    assert record.layers[1].aliases == ("4",)
    assert made[2] is made[4]
    assert isinstance(made[5][0], nn.ConvTranspose2d)
    assert [type(part) for part in made if part not in (made[0], made[2], made[5])] == [
        type(part) for part in model if part not in (model[0], model[2], model[5])
    ]
    assert record.layers[0].notes == ()
    hi = copy.deepcopy(model).double()(x.double())
    assert_within_budget(made(x), hi, roundings(call, model, x))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not {id(p) for p in made.parameters()} & {id(p) for p in model.parameters()}


def test_a_window_suits_the_largest_size_along_each_axis():
    torch.manual_seed(0)
    encoding = Quadratic(4, 2, centres=[(0, 0), (0, 6), (1, -6), (0, 3)], sharpness=8.0)
    layer = RelativeAttention2d(2, 2, num_heads=4, encoding=encoding).eval()
    x = images(2, 2, 13, 13)
    two_sizes = Called(
        layer, lambda layer, x: [layer(F.interpolate(x, size)) for size in ((13, 4), (12, 12))]
    )
    made, _ = network_to_conv(two_sizes, images=x)
    single, _ = attention_to_conv(layer, spatial=(13, 12))
    narrow, _ = attention_to_conv(layer, spatial=(13, 4))
    assert made.layer.kernel_size == single.kernel_size != narrow.kernel_size
    assert torch.equal(made.layer.weight, single.weight)


def soft_network(**options):
    torch.manual_seed(0)
    sizes = {"width": 8, "depth": 2, "heads": 4, "ffn": 8, "image_size": 16}
    return AttentionNet(**{**sizes, **options}).eval()


@pytest.mark.parametrize("encoding", ["quadratic", "learned_axial", "sinusoidal", "distance"])
def test_attention_net_becomes_a_conv_net(tmp_path, encoding):
    model, x = soft_network(encoding=encoding), images(6, 3, 16, 16)
    made, record = network_to_conv(model, images=x)
    assert record.verdict in ("close", "different")
    assert not record.exact
    assert record.source == record.result == "convattn.models.attention_net.AttentionNet"
    assert [layer.name for layer in record.layers] == ["blocks.0.mixer", "blocks.1.mixer"]
    assert record.layers[0].not_covered == ("images of other sizes than 8 x 8", DROPPED)
    assert (
        f"note            not covered: {DROPPED} (blocks.0.mixer, blocks.1.mixer)"
        in record.summary()
    )
    apart = (made(x).double() - copy.deepcopy(model).double()(x.double())).abs()
    assert (apart == record.measured_error).any()
    save_network(made, tmp_path)
    loaded = load_network(tmp_path)
    hi = copy.deepcopy(made).double()(x.double())
    assert_within_budget(loaded(x), hi, roundings(call, made, x))


def test_rows_of_scores_are_counted():
    by_row = Called(
        hard(nn.Conv2d(3, 4, 3)), lambda layer, x: layer(x).mean(3).movedim(1, 2).flatten(0, 1)
    )
    assert network_to_conv(by_row, images=images(2, 3, 8, 8))[1].top1_total == 12


def test_borders_are_checked_before_any_layer():
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8)
    with pytest.raises(UnknownNameError, match="unknown borders 'zeros'"):
        network_to_conv(network, borders="zeros")
    with pytest.raises(ArgumentError, match='borders must be "plain" with a kernel_size'):
        network_to_conv(network, borders="exact", kernel_size=3)
    with pytest.raises(ArgumentError, match="mass must be None with a kernel_size, which is the"):
        network_to_conv(network, mass=0.5, kernel_size=3)


def test_changed_classes_are_counted():
    model, x = soft_network(initializer_range=0.2), images(40, 3, 16, 16)
    with torch.no_grad():
        model.head.bias -= model(x).mean(0)  # so that no class is that of all images
        before = model(x).argmax(1)
        made, record = network_to_conv(model, kernel_size=3, images=x)
        after = made(x).argmax(1)
    assert 0 < (before != after).sum() < 40
    assert (record.top1_changed, record.top1_total) == ((before != after).sum(), 40)


def test_a_window_of_the_whole_grid_is_nearer_end_to_end_than_a_pixel():
    model, x = soft_network(), images(6, 3, 16, 16)
    pixel, grid = (
        network_to_conv(model, kernel_size=k, images=x)[1].measured_error for k in (1, 15)
    )
    assert grid < pixel


def test_layers_are_chosen_by_name():
    model = network()
    made, record = network_to_conv(model, include=["0", "5.*"], exclude="5.0")
    assert [layer.name for layer in record.layers] == ["0"]
    assert [(item.name, item.reason) for item in record.left_alone] == [
        ("2", "left out by include"),
        ("5.0", "left out by exclude"),
    ]
    assert isinstance(made[2], RelativeAttention2d)
    assert record.not_covered[0] == "the whole network: no images were given"
    assert (record.measured_error, record.images, record.shapes) == (None, None, ())


def test_what_cannot_be_converted_stays_and_says_why():
    torch.manual_seed(0)
    model = nn.Sequential(
        RelativeAttention2d(3, 3, num_heads=4, content=True),
        RelativeAttention2d(3, 3, num_heads=4, gate="sigmoid"),
        hooked(hard(nn.Conv2d(3, 3, 1))),
        hard(nn.Conv2d(3, 3, 1)),
    ).eval()
    made, record = network_to_conv(model, images=images(2, 3, 5, 7))
    assert [type(module) for module in made] == [type(module) for module in model[:3]] + [nn.Conv2d]
    reasons = {item.name: item.reason for item in record.left_alone}
    assert "depend on content" in reasons["0"]
    assert "gate is open" in reasons["1"]
    assert "forward hooks" in reasons["2"]
    assert record.passed


def test_a_layer_that_meets_several_sizes_is_made_for_the_largest():
    torch.manual_seed(0)
    layer = RelativeAttention1d(2, 2, num_heads=3, encoding="sinusoidal")
    model = nn.Sequential(layer, nn.MaxPool1d(2), layer).eval()
    _, record = network_to_conv(model, images=images(2, 2, 12))
    assert record.layers[0].not_covered == ("images of other sizes than 12",)


def test_a_fault_in_a_converted_network_shows(monkeypatch):
    def faulty(layer, **options):
        conv, certificate = attention_to_conv(layer, **options)
        conv.weight.data *= 1 - 1e-4
        return conv, certificate

    home = sys.modules[network_to_conv.__module__]
    monkeypatch.setattr(home, "attention_to_conv", faulty)
    _, record = network_to_conv(network(), images=images(5, 3, 11, 13))
    assert not record.passed


def test_numbers_that_are_not_finite_do_not_pass():
    model = nn.Sequential(hard(nn.Conv2d(3, 3, 1)), nn.Linear(4, 4)).eval()
    nn.init.constant_(model[1].weight, torch.nan)
    assert not network_to_conv(model, images=images(2, 3, 4, 4))[1].passed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 0}, "kernel_size must be an integer of at least 1"),
        ({"mass": 2.0}, r"mass must be a share in \(0, 1\)"),
        ({"mass": "half"}, r"mass must be a share in \(0, 1\), or None, but is 'half'"),
        ({"include": []}, "include must be a name pattern or a sequence of them"),
        ({"exclude": ()}, "exclude must be a name pattern or a sequence of them"),
        (
            {"include": "no-such-layer"},
            "include must be a pattern that matches attention layers in the network, for instance ",
        ),
        ({"exclude": ["*", "no-such-layer"]}, "exclude must be .*, but is 'no-such-layer'"),
        ({"images": torch.zeros(0, 3, 5, 5)}, "images must be a batch of at least one"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("without_type_checks")
def test_hostile_arguments_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        network_to_conv(network(), **options)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Linear(2, 2),
            r"cannot convert Linear: no layer could be converted \(it has no RelativeAttention layers; other",
        ),
        (
            nn.Sequential(RelativeAttention2d(3, 3, num_heads=4, content=True)),
            r"no layer could be converted \(0 \(RelativeAttention2d\): .*depend on content",
        ),
        (  # each reason once
            nn.Sequential(
                *(RelativeAttention2d(3, 3, num_heads=4, content=True) for _ in range(2))
            ),
            r"no layer could be converted \(0, 1 \(RelativeAttention2d\): [^;]*depend on content[^;]*\)$",
        ),
    ],
)
def test_a_network_without_such_layers_is_refused(model, message):
    with pytest.raises(ConversionError, match=message):
        network_to_conv(model)


def test_weights_that_are_no_longer_shared_are_said():
    network = nn.Sequential(hard(nn.Conv2d(4, 4, 3)), hard(nn.Conv2d(4, 4, 3)))
    network[1].values = network[0].values
    made, record = network_to_conv(network)
    assert made[1].weight is made[0].weight
    assert [layer.notes for layer in record.layers] == [(), ()]
    network = nn.Sequential(*(RelativeAttention2d(4, 4, num_heads=4) for _ in range(2)))
    network[1].values = network[0].values
    made, record = network_to_conv(network, kernel_size=3)
    assert not torch.equal(made[1].weight, made[0].weight)
    assert [layer.notes for layer in record.layers] == [
        ("it no longer shares weights with 1.values",),
        ("it no longer shares weights with 0.values",),
    ]
