"""Least squares, layer by layer."""

import copy

import pytest
import torch
from torch import nn

from convattn.convert import conv_to_attention, network_to_conv, refine
from convattn.convert.fit import NormalEquations, Refinement, unknowns
from convattn.errors import ArgumentError, ShapeError
from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet, ConvNet


def images(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )


CONVOLUTIONS = {
    "1d": (nn.Conv1d, {"kernel_size": 4, "stride": 2, "padding": 1}, (31,)),
    "2d": (nn.Conv2d, {"kernel_size": (2, 3), "padding": 1, "bias": False}, (7, 11)),
    "3d": (nn.Conv3d, {"kernel_size": 2, "padding": (0, 1, 0)}, (3, 4, 5)),
    "groups": (nn.Conv2d, {"kernel_size": 3, "groups": 2}, (7, 11)),
    "dilation": (nn.Conv2d, {"kernel_size": 2, "dilation": (2, 3), "padding": "same"}, (7, 11)),
    "valid": (nn.Conv2d, {"kernel_size": 2, "padding": "valid"}, (7, 11)),
    "reflect": (nn.Conv2d, {"kernel_size": 3, "padding": 2, "padding_mode": "reflect"}, (7, 11)),
    "replicate": (
        nn.Conv2d,
        {"kernel_size": 3, "padding": 2, "padding_mode": "replicate"},
        (7, 11),
    ),
    "circular": (
        nn.Conv2d,
        {"kernel_size": 3, "padding": (2, 1), "padding_mode": "circular"},
        (7, 11),
    ),
}


@pytest.mark.parametrize(("kind", "options", "spatial"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_least_squares_find_the_convolution_that_was_there(kind, options, spatial):
    torch.manual_seed(0)
    true, found = (kind(4, 6, **options, dtype=torch.float64) for _ in range(2))
    equations = NormalEquations(found)
    for x in images(8, 4, *spatial, dtype=torch.float64).split(3):
        equations.add(x, (true(x) - found(x)).detach())
    equations.solve(1e-12)
    for name, parameter in true.named_parameters():
        error = (parameter - found.get_parameter(name)).abs().max().item()
        assert error < 1e-9, name  # ridge 1e-12 times a condition number below 100


def test_ridge_holds_the_weights():
    torch.manual_seed(0)
    true, found = (nn.Conv1d(2, 3, 3) for _ in range(2))
    start, x = found.weight.detach().clone(), images(5, 2, 17)
    moves = []
    for ridge in (1e6, 1.0, 1e-6):
        made = copy.deepcopy(found)
        equations = NormalEquations(made)
        equations.add(x, (true(x) - made(x)).double().detach())
        equations.solve(ridge)
        moves.append((made.weight - start).norm().item())
    assert moves == sorted(moves)
    assert moves[0] < 1e-3 * moves[2]


def soft_network(**options):
    torch.manual_seed(0)
    sizes = {
        "width": 8,
        "depth": 2,
        "heads": 4,
        "ffn": 8,
        "image_size": 16,
        "initializer_range": 0.2,
    }
    return AttentionNet(**{**sizes, **options}).eval()


@pytest.mark.parametrize("fold", [True, False])
def test_a_refined_network_is_nearer_on_images_that_it_has_not_seen(fold):
    attention, x = soft_network(), images(120, 3, 16, 16)
    with torch.no_grad():
        attention.head.bias -= attention(x).mean(0)  # so that no class is that of all images
    conv, _ = network_to_conv(
        attention, kernel_size=3, images=x, fold=fold, padding_mode="replicate"
    )
    before = [{k: v.clone() for k, v in net.state_dict().items()} for net in (conv, attention)]
    refined, record = refine(conv, attention, x)
    assert [layer.name for layer in record.layers] == ["blocks.0.mixer", "blocks.1.mixer"]
    assert (record.fitted, record.held_out) == (96, 24)
    for layer in record.layers:
        assert layer.kept
        assert layer.after < layer.before
    assert record.after < record.before
    classes, *others = (net(x[4::5]).argmax(1) for net in (attention, conv, refined))
    changed = [int((classes != other).sum()) for other in others]
    assert [record.top1_changed_before, record.top1_changed_after] == changed
    new = images(60, 3, 16, 16) * 0.9
    errors = [(net(new) - attention(new)).square().mean().item() for net in (conv, refined)]
    assert errors[1] < errors[0]
    for net, kept in zip((conv, attention), before, strict=True):
        assert all(torch.equal(v, kept[k]) for k, v in net.state_dict().items())
        assert not any(module._forward_hooks for module in net.modules())
    assert not any(module._forward_hooks for module in refined.modules())
    if fold:
        assert ConvNet.of(refined).kernel_size == 3
    assert Refinement.from_json(record.to_json()) == record
    text = record.summary()
    assert text.startswith("refined on 96 images, measured on 24 others")
    for part in ("end to end", "top-1 changed", "layer           blocks.0.mixer: "):
        assert part in text


def test_modes_are_kept():
    attention, x = soft_network(depth=1).train(), images(10, 3, 16, 16)
    conv, _ = network_to_conv(attention, kernel_size=3, images=x)
    conv.head.eval()
    refined, _ = refine(conv, attention, x)
    assert [m.training for m in refined.modules()] == [m.training for m in conv.modules()]


def test_a_fit_that_does_not_help_is_taken_back():
    """On white noise the kernel is near the best one, and few pixels teach noise."""
    torch.manual_seed(0)
    attention, x = nn.Sequential(RelativeAttention2d(3, 4, 4, "quadratic")), images(5, 3, 5, 5)
    conv, _ = network_to_conv(attention, kernel_size=5, images=x)
    refined, record = refine(conv, attention, x, ridge=1e-14)
    assert not record.layers[0].kept
    assert record.layers[0].after >= record.layers[0].before
    assert record.before == record.after
    assert "not kept" in record.summary()
    assert torch.equal(refined[0].weight, conv[0].weight)


class Around(nn.Module):
    """Calls a layer in its own way."""

    def __init__(self, call):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.call = RelativeAttention2d(3, 3, 4, "quadratic", dtype=torch.float64), call

    def forward(self, x):
        return self.call(self.layer, x)


def add_in_place(layer, x):
    x = 1 * x
    x += layer(x)
    return x


PLAIN = lambda layer, x: torch.relu(layer(x))  # noqa: E731 - a case like those below
CALLS = {
    "its output changed in place": (lambda layer, x: torch.relu_(layer(x)), PLAIN),
    "its input changed in place": (add_in_place, lambda layer, x: x + layer(x)),
    "by name": (lambda layer, x: torch.relu(layer(input=x)), PLAIN),
    "twice": (
        lambda layer, x: layer(x) + layer(3 * x),
        lambda layer, x: layer(torch.cat([x, 3 * x])),
    ),
}


@pytest.mark.parametrize(("call", "alike"), CALLS.values(), ids=CALLS)
def test_a_layer_is_fitted_however_it_is_called(call, alike):
    x, found = images(40, 3, 9, 9, dtype=torch.float64), []
    for network in (Around(call), Around(alike)):
        conv, _ = network_to_conv(network, kernel_size=3, images=x)
        refined, record = refine(conv, network, x)
        assert record.layers[0].kept
        found.append((refined.layer.weight, record.layers[0]))
    assert (found[0][0] - found[1][0]).abs().max() < 1e-12
    assert found[0][1].before == pytest.approx(found[1][1].before, rel=1e-12)


def test_batch_normalisation_folded_in_is_part_of_what_is_wanted():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    nn.init.normal_(norm.running_mean)
    attention = nn.Sequential(RelativeAttention2d(3, 4, 4, "quadratic"), norm, nn.ReLU()).eval()
    x = images(20, 3, 9, 9) + 1
    conv, _ = network_to_conv(attention, kernel_size=3, images=x)
    assert isinstance(conv[1], nn.Identity)
    _, record = refine(conv, attention, x)
    assert record.after < record.before
    assert record.top1_changed_before is None
    assert "top-1" not in record.summary()


def test_layers_that_cannot_be_fitted_are_named():
    torch.manual_seed(0)
    shared = conv_to_attention(nn.Conv2d(4, 4, 1))[0]
    attention = nn.Sequential(
        conv_to_attention(nn.ConvTranspose2d(3, 4, 3, stride=2))[0],
        shared,
        shared,
        conv_to_attention(nn.Conv2d(4, 4, 46, padding=23))[0],
        conv_to_attention(nn.Conv2d(4, 4, 1))[0],
    ).eval()
    x = images(5, 3, 3, 3)
    conv, _ = network_to_conv(attention, exclude="4", images=None)
    _, record = refine(conv, attention, x)
    assert record.layers == ()
    assert {item.name: item.reason for item in record.left_alone} == {
        "0": "ConvTranspose2d is not fitted",
        "1": "it is used in several places",
        "3": "8465 unknowns per output channel are more than 8192",
    }
    assert unknowns(conv[3]) == 8465
    assert "left alone" in record.summary()


class Pair(nn.Module):
    """Returns two tensors."""

    def __init__(self):
        super().__init__()
        self.layer = conv_to_attention(nn.Conv2d(3, 3, 1))[0]

    def forward(self, x):
        return self.layer(x), x


class Often(nn.Module):
    """Runs a layer a number of times."""

    def __init__(self, layer, times):
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x):
        for _ in range(self.times):
            x = self.layer(x)
        return x


def converted(model):
    return network_to_conv(model)[0], model


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (
            lambda: (Pair(), Pair()),
            {"count": 4},
            ArgumentError,
            "images must be a batch of at least 5",
        ),
        (
            lambda: converted(Pair()),
            {"ridge": 0.0},
            ArgumentError,
            "ridge must be a positive finite number, but is 0",
        ),
        (
            lambda: converted(Pair()),
            {},
            ArgumentError,
            "conv_model must be a network that returns one tensor",
        ),
        (
            lambda: (Pair(), Pair()),
            {},
            ArgumentError,
            "conv_model must be the result of network_to_conv on attention_model",
        ),
        (
            lambda: (
                nn.Sequential(nn.Conv2d(3, 3, 2)),
                nn.Sequential(conv_to_attention(nn.Conv2d(3, 3, 1))[0]),
            ),
            {},
            ShapeError,
            r"the outputs of both networks must have the same shape, but have \(1, 3, 4, 4\) and \(1, 3, 5, 5\)",
        ),
        (
            lambda: tuple(
                nn.Sequential(layer, nn.AdaptiveAvgPool2d(1))
                for layer in (nn.Conv2d(3, 3, 2), conv_to_attention(nn.Conv2d(3, 3, 1))[0])
            ),
            {},
            ShapeError,
            r"the outputs of two layers must have the same shape, but have \(1, 3, 4, 4\) and \(1, 3, 5, 5\)",
        ),
        (
            lambda: (
                Often(nn.Conv2d(3, 3, 1), 2),
                Often(conv_to_attention(nn.Conv2d(3, 3, 1))[0], 1),
            ),
            {},
            ArgumentError,
            "a layer runs 2 times in one network, 1 in the other",
        ),
    ],
)
def test_hostile_arguments_are_refused(make, options, error, message):
    conv, attention = make()
    x = images(options.pop("count", 5), 3, 5, 5)
    with pytest.raises(error, match=message):
        refine(conv, attention, x, **options)
