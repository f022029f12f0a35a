"""Whole networks: what a conversion keeps."""

import re
from functools import partial

import pytest
import torch
from tests.convert.network.network_cases import (
    Branches,
    Renamed,
    assert_unchanged,
    converted,
    filled,
    fingerprint,
    images,
)
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.data import DataLoader, TensorDataset

from convattn import network_to_attention
from convattn.errors import ArgumentError, ConversionError, UnknownNameError
from convattn.layers import RelativeAttention2d


def test_a_module_in_several_places_stays_one_and_tied_weights_stay_tied():
    network = Branches()
    made, certificate = converted(network, images(2, 3, 7, 9))
    assert made.first is made.again
    assert made.left is not made.right
    assert made.left.values.weight is made.right.values.weight
    assert made.left.bias is not made.right.bias
    entry = certificate.layers[0]
    assert (entry.name, entry.aliases, entry.notes) == ("first", ("again",), ())
    assert len(certificate.layers) == 3


def test_a_tie_that_cannot_be_kept_is_said():
    network = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3))
    network[1].weight = network[0].weight
    _, certificate = converted(network, images(1, 4, 7, 9))
    assert [layer.notes for layer in certificate.layers] == [
        ("it no longer shares weights with 1",),
        (
            "of stride 1, a transposed convolution comes back as a plain one",
            "it no longer shares weights with 0",
        ),
    ]


def test_a_bias_tied_to_another_module_stays_tied():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    network[0].bias = network[1].bias
    made, _ = converted(filled(network), images(1, 3, 7, 9))
    assert made[0].bias is made[1].bias


def test_mode_and_what_learns_are_kept():
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1)
    )
    network[0].eval()
    network[0].weight.requires_grad_(False)
    network[2].bias.requires_grad_(False)
    made, _ = converted(network, images(1, 3, 9, 11))
    assert [module.training for module in made] == [False, True, True, True]
    assert [m.values.weight.requires_grad for m in (made[0], made[2])] == [False, True]
    soft, _ = network_to_attention(network, sharpness=5.0, images=images(1, 3, 9, 11))
    assert [m.encoding.centres.requires_grad for m in (soft[0], soft[2])] == [False, True]
    assert [m.bias.requires_grad for m in (made[0], made[2])] == [True, False]
    assert made[0].values.training is made[0].encoding.training is False


def test_hooks_are_kept_and_called_with_the_layer():
    network, seen = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), []

    def double(module, given):
        seen.append(type(module).__name__)
        return (2 * given[0],)

    network[0].register_forward_pre_hook(double)
    network[0].register_forward_hook(lambda *arguments: arguments[-1] + 1)
    network[0].register_full_backward_hook(lambda *_: seen.append("backward"))
    x = images(2, 3, 7, 9)
    made, certificate = converted(network, x)
    assert certificate.layers[0].notes == (
        "its hooks were kept and are called with the attention layer",
    )
    seen.clear()
    made(x.requires_grad_()).sum().backward()
    assert seen == ["RelativeAttention2d", "backward"]


@pytest.mark.parametrize(
    "wrap",
    [
        parametrizations.spectral_norm,
        parametrizations.weight_norm,
        partial(prune.random_unstructured, name="weight", amount=0.5),
        nn.utils.spectral_norm,
        nn.utils.weight_norm,
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_computed_weight_is_computed_as_before(wrap):
    """A new spectral norm takes steps in training: there the weight of before would be far too large."""
    torch.manual_seed(0)
    network = nn.Sequential(wrap(nn.Conv2d(3, 4, 3)), nn.ReLU(), nn.Conv2d(4, 5, 1))
    before = fingerprint(network)
    x = images(2, 3, 7, 9)
    made, certificate = network_to_attention(network, images=x)
    assert_unchanged(network, before)
    assert certificate.passed
    notes = [layer.notes for layer in certificate.layers]
    assert notes == [("its weight is computed in each call, as before",), ()]
    for _ in range(3):
        assert torch.equal(made(x), network(x))
    made(x).sum().backward()
    assert [name for name, one in made.named_parameters() if one.grad is None] == []


def test_a_subclass_that_overrides_nothing_is_converted():
    made, _ = converted(nn.Sequential(Renamed(3, 4, 3)), images(1, 3, 7, 9))
    assert type(made[0]) is RelativeAttention2d


def test_patterns_choose_modules():
    network = nn.ModuleDict(
        {"stem": nn.Conv2d(3, 4, 3), "stage": nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1))}
    )
    network = nn.Sequential(*network.values())
    x = images(1, 3, 9, 11)
    made, certificate = converted(network, x, include="1.*", exclude=["1.1"])
    assert [type(m).__name__ for m in (made[0], made[1][0], made[1][1])] == [
        "Conv2d",
        "RelativeAttention2d",
        "Conv2d",
    ]
    assert [(item.name, item.reason) for item in certificate.left_alone] == [
        ("0", "left out by include"),
        ("1.1", "left out by exclude"),
    ]
    message = "include must be a pattern that matches convolutions in the network, for instance '1.1', but is '1.9'"
    with pytest.raises(ArgumentError, match=re.escape(message)):
        network_to_attention(network, include=["1.*", "1.9"], images=x)
    with pytest.raises(ArgumentError, match=r"for instance '\*', but is 'layer9'"):
        network_to_attention(network[0], exclude="layer9", images=x)


KINDS = "images must be a tensor, .*a tuple of arguments or a mapping .*, but is of type"


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"model": 3}, ArgumentError, r"model must be an nn\.Module, but is of type int"),
        ({"images": images(1, 3, 7, 9).numpy()}, ArgumentError, f"{KINDS} ndarray"),
        ({"images": 3}, ArgumentError, f"{KINDS} int"),
        ({"images": DataLoader(TensorDataset())}, ArgumentError, f"{KINDS} DataLoader"),
        (
            {"content": True, "impl": "separable"},
            ArgumentError,
            "impl='separable' cannot compute this layer, because its scores depend on the images",
        ),
        ({"content": "yes"}, ArgumentError, "content must be True, False or a Content, but is 'y"),
        ({"impl": "separabel"}, UnknownNameError, "unknown impl 'separabel': did you mean 'separa"),
        (
            {"sharpness": -1},
            ArgumentError,
            "sharpness must be a positive finite number in torch.float32, but is -1",
        ),
        (
            {"exclude": 3},
            ArgumentError,
            "exclude must be a name pattern or a sequence of them, but",
        ),
        ({"images": images(1, 5, 7, 9)}, ArgumentError, "images must fit the network, but on the"),
        (
            {"model": nn.Linear(9, 3)},
            ConversionError,
            "no convolution to convert in Linear: none of its modules is one",
        ),
    ],
)
def test_wrong_arguments(options, kind, message):
    network = nn.Sequential(nn.Conv2d(3, 4, 3))
    before = fingerprint(network)
    with pytest.raises(kind, match=message):
        network_to_attention(**{"model": network, "images": images(1, 3, 7, 9), **options})
    assert_unchanged(network, before)


def test_the_network_itself_may_be_a_convolution():
    layer = nn.Conv2d(3, 4, 3)
    made, certificate = converted(layer, images(1, 3, 7, 9))
    assert type(made) is RelativeAttention2d
    assert (certificate.layers[0].name, certificate.layers[0].notes) == ("", ())
    layer.register_forward_hook(lambda *_: None)
    _, certificate = network_to_attention(layer, images=images(1, 3, 7, 9))
    assert (
        "hooks were kept and are called with the attention layer (the network itself)"
        in certificate.summary()
    )


def test_a_network_whose_convolutions_are_all_left_out():
    network, x = nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(5))), images(1, 3, 7, 9)
    message = "in Sequential: 0, 1, 2 and 2 more (Conv2d): left out by exclude"
    with pytest.raises(ConversionError, match=re.escape(message)):
        network_to_attention(network, exclude="*", images=x)


@pytest.mark.parametrize(("number", "told"), [(1, "1 layer is"), (2, "2 layers are")])
def test_a_network_that_is_attention_already(number, told):
    network, x = nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(number))), images(1, 3, 7, 9)
    made, _ = network_to_attention(network, images=x)
    message = (
        f"in Sequential: {told} attention already; `network_to_conv` (`--to conv`) converts back"
    )
    for include in (None, "0"):
        with pytest.raises(ConversionError, match=re.escape(message)):
            network_to_attention(made, include=include, images=x)
