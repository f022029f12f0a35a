"""Frozen copies for inference."""

import copy
import pickle
from operator import call

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from convattn import save_network
from convattn.budget import assert_within_budget, roundings
from convattn.convert import (
    attention_to_conv,
    conv_to_attention,
    freeze,
    network_to_attention,
)
from convattn.convert.calls import AttendedCalls, Call
from convattn.errors import ArgumentError, ConversionError, ShapeError, UnsupportedModelError
from convattn.layers import FrozenAttention, MergedValues, RelativeAttention1d, RelativeAttention2d


class Padded(nn.Conv2d):
    """Pads at the end, and calls a convolution."""

    def forward(self, x):
        return super().forward(nn.functional.pad(x, (0, 1, 0, 1)))


def images(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


LAYERS = {
    "hard": lambda: RelativeAttention2d(
        4, 6, num_heads=9, encoding="shift", kernel_size=1, padding=1, groups=2
    ),
    "reflected": lambda: RelativeAttention2d(
        4,
        6,
        num_heads=9,
        encoding="shift",
        kernel_size=3,
        padding=1,
        padding_mode="reflect",
        stride=2,
    ),
    "transposed": lambda: conv_to_attention(nn.ConvTranspose2d(4, 6, 3, stride=2))[0],
    "grid": lambda: conv_to_attention(nn.Conv2d(4, 6, 3, padding=1), sharpness=1.0)[0],
    "grid, hard": lambda: conv_to_attention(nn.Conv2d(4, 6, 3, padding=1), impl="separable")[0],
    "separable": lambda: RelativeAttention2d(4, 6, num_heads=5),
    "narrow": lambda: RelativeAttention2d(4, 6, num_heads=5, head_width=2),
    "dense": lambda: RelativeAttention2d(4, 6, num_heads=2, encoding="distance"),
    "fourier": lambda: RelativeAttention2d(
        4, 6, num_heads=2, encoding="generalized_quadratic", impl="fourier"
    ),
    "dropout": lambda: RelativeAttention2d(4, 6, num_heads=2, encoding="sinusoidal", dropout=0.3),
}


def gradient(module, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(module(x).square().sum(), x)[0]


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_a_frozen_layer_computes_the_layer_and_its_gradients_for_any_number_of_images(make):
    torch.manual_seed(0)
    layer, x = make(), images(3, 4, 11, 13)
    frozen = freeze(layer, x[:1])
    assert isinstance(frozen, FrozenAttention)
    assert layer.training
    assert not frozen.training
    layer.eval()
    for compute in (call, gradient):
        high = compute(copy.deepcopy(layer).double(), x.double())
        assert_within_budget(compute(frozen, x), high, roundings(compute, layer, x))
    channels_last = x.contiguous(memory_format=torch.channels_last)
    for compute in (call, gradient):
        assert compute(frozen, x).is_contiguous()
        assert compute(frozen, channels_last).is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert frozen(x[:0]).shape == layer(x[:0]).shape
        before = frozen(x)
        assert torch.equal(pickle.loads(pickle.dumps(frozen))(x), before)
        for parameter in layer.parameters():
            parameter.add_(1)
        assert torch.equal(frozen(x), before)
    assert not list(frozen.parameters())
    assert not frozen(x).requires_grad


@pytest.mark.parametrize("sharpness", [None, 1.0])
def test_a_layer_that_is_padded_by_its_image_is_frozen(sharpness):
    """Hard heads become a convolution of torch, which has no geometry."""
    layer, x = (
        conv_to_attention(nn.Conv2d(4, 6, 3, stride=2), sharpness=sharpness)[0],
        images(2, 4, 9, 8),
    )
    options = {"stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    called = Call(nn.Conv2d, (6, 4, 3, 3), options)
    padded = AttendedCalls(Padded(4, 6, 3, stride=2), [layer], [called]).eval()
    frozen = copy.deepcopy(freeze(nn.Sequential(padded), x))
    assert not isinstance(frozen[0].layers[0], RelativeAttention2d)
    high = copy.deepcopy(padded).double()(x.double())
    assert_within_budget(frozen(x), high, roundings(call, padded, x))


@pytest.mark.parametrize("stored", [True, False], ids=["kernel", "matrices"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_fixed_heads_at_the_taps_of_the_window_become_the_convolution_that_they_are(stored, bias):
    torch.manual_seed(0)
    window = {"kernel_size": (3, 5), "padding": (1, 4), "stride": 2, "dilation": (1, 2)}
    layer = RelativeAttention2d(4, 6, **window, groups=2, bias=bias, encoding="shift")
    if not stored:
        layer.values = MergedValues(15, 4, 6, groups=2)
    frozen = freeze(layer, images(1, 4, 9, 11))
    assert type(frozen) is nn.Conv2d
    assert not frozen.training
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    layer.eval()
    for name in ("kernel_size", "stride", "dilation", "groups"):
        assert getattr(frozen, name) == getattr(layer, name)
    with torch.no_grad():
        for shape in ((3, 4, 9, 11), (2, 4, 14, 12)):
            assert torch.equal(frozen(images(*shape)), layer(images(*shape)))
        before = frozen(images(3, 4, 9, 11))
        for parameter in layer.parameters():
            parameter.add_(1)
        assert torch.equal(frozen(images(3, 4, 9, 11)), before)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.pool = nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(2)

    def forward(self, x):
        return self.shared(self.pool(self.shared(x)))


def test_a_network_is_frozen_with_every_size_that_its_layers_meet():
    torch.manual_seed(0)
    made, _ = network_to_attention(Twice(), sharpness=2.0, images=images(1, 4, 12, 14))
    frozen = freeze(made, images(1, 4, 12, 14))
    assert tuple(frozen.shared._prepared) == ((12, 14), (6, 7))
    assert type(made.shared) is RelativeAttention2d
    with torch.no_grad():
        x = images(5, 4, 12, 14)
        high = copy.deepcopy(made).eval().double()(x.double())
        assert_within_budget(frozen(x), high, roundings(call, made.eval(), x))
        again = pickle.loads(pickle.dumps(frozen))
        assert torch.equal(again(x), copy.deepcopy(frozen)(x))


def test_layers_that_look_at_content_stay_as_they_are():
    torch.manual_seed(0)
    network = nn.Sequential(
        RelativeAttention2d(3, 4, num_heads=2),
        RelativeAttention2d(4, 4, num_heads=2, content=True),
    )
    frozen = freeze(network, images(1, 3, 5, 7))
    assert [type(layer) for layer in frozen] == [FrozenAttention, RelativeAttention2d]
    with pytest.raises(
        ConversionError, match="cannot freeze: the images reach no attention layer without content"
    ):
        freeze(network[1], images(1, 4, 5, 7))


def test_what_a_frozen_layer_cannot_do_is_refused():
    frozen = freeze(RelativeAttention1d(3, 5, num_heads=2), images(1, 3, 11))
    with pytest.raises(
        ShapeError,
        match="x must have a size for which this layer was frozen, 11, but has 12: freeze",
    ):
        frozen(images(1, 3, 12))
    with pytest.raises(
        ShapeError, match=r"x must be of shape \(batch, 3, positions\), but is \(1, 4, 11\)"
    ):
        frozen(images(1, 4, 11))
    with pytest.raises(
        ArgumentError, match=r"x must be of the weights' dtype torch\.float32, but is"
    ):
        frozen(images(1, 3, 11).double())
    with pytest.raises(ArgumentError, match="a frozen layer cannot be trained"):
        frozen.train()
    with pytest.raises(ArgumentError, match="a frozen layer cannot be moved or cast"):
        frozen.double()
    assert frozen.eval() is frozen


def test_wrong_arguments_are_named(without_type_checks):
    with pytest.raises(ArgumentError, match="x must be a tensor, but is of type list"):
        freeze(RelativeAttention2d(3, 5, num_heads=2), images(1, 3, 5, 7))([1])
    with pytest.raises(ArgumentError, match=r"model must be an nn\.Module, but is of type int"):
        freeze(3, images(1, 3, 5, 7))
    with pytest.raises(
        ArgumentError,
        match=r"images must be a tensor, .*a tuple of arguments or a mapping of them, but is",
    ):
        freeze(RelativeAttention2d(3, 5, num_heads=2), None)
    with pytest.raises(
        ArgumentError,
        match=r"but on the 1 image given \(first batch: float32 of shape \(1, 4, 5, 7\)\) it raised",
    ):
        freeze(RelativeAttention2d(3, 5, num_heads=2), images(1, 4, 5, 7))


def test_a_frozen_layer_prints_its_sizes_and_paths_and_has_the_weight_of_a_convolution():
    conv = nn.Conv2d(4, 6, (3, 5), padding=(1, 2))
    frozen = freeze(conv_to_attention(conv, sharpness=1.0)[0], images(1, 4, 11, 13))
    assert frozen.extra_repr() == "4, 6, num_heads=15, paths={'11 x 13': 'separable'}"
    assert torch.equal(frozen.weight, conv.weight)
    assert (frozen.kernel_size, frozen.stride, frozen.dilation) == ((3, 5), (1, 1), (1, 1))
    other = FrozenAttention(RelativeAttention2d(4, 6, num_heads=5), [(7, 5), (11, 13)])
    assert tuple(other._prepared) == ((7, 5), (11, 13))
    with pytest.raises(AttributeError, match=r"has no attribute 'weight'$"):
        _ = other.weight


def test_layers_that_need_the_images_and_no_sizes_are_refused():
    with pytest.raises(
        ArgumentError, match="layer must be one whose scores do not depend on content, but is 'Rel"
    ):
        FrozenAttention(RelativeAttention2d(4, 6, num_heads=5, content=True), [(7, 5)])
    with pytest.raises(
        ArgumentError, match=r"sizes must be at least one size of images, but is \[\]"
    ):
        FrozenAttention(RelativeAttention2d(4, 6, num_heads=5), [])


def test_sizes_and_layers_of_another_form_are_refused_by_name(without_type_checks):
    layer = RelativeAttention2d(4, 6, num_heads=5)
    with pytest.raises(ArgumentError, match=r"^sizes must be sizes per axis, as \[\(32, 32\)\]"):
        FrozenAttention(layer, (7, 5))
    with pytest.raises(ArgumentError, match=r"^layer must be a RelativeAttention"):
        FrozenAttention(torch.nn.Conv2d(4, 6, 3), [(7, 5)])
    assert FrozenAttention(layer, [[7, 5]])(torch.zeros(1, 4, 7, 5)).shape == (1, 6, 7, 5)


def test_a_pruned_layer_is_frozen():
    layer, x = RelativeAttention2d(4, 6, num_heads=5).eval(), images(2, 4, 7, 5)
    prune.l1_unstructured(layer.values, "weight", 0.5)
    frozen = FrozenAttention(layer, [(7, 5)])
    with torch.no_grad():
        assert torch.equal(frozen(x), layer(x))


def doubled(module, name):
    """Replaces a method of a module by one that gives twice as much."""
    own = getattr(module, name)
    setattr(module, name, lambda *arguments: 2 * own(*arguments))


CHANGES = {
    "forward": (lambda layer: doubled(layer, "forward"), "another forward", "forward"),
    "score": (
        lambda layer: doubled(layer.encoding, "axis_scores"),
        "another axis_scores at encoding",
        "encoding.axis_scores",
    ),
    "hook": (
        lambda layer: layer.values.register_forward_hook(lambda *arguments: 2 * arguments[2]),
        "forward hooks",
        "values.forward hook",
    ),
}


@pytest.mark.parametrize(("change", "words", "place"), CHANGES.values(), ids=CHANGES)
def test_a_layer_that_does_not_compute_its_class_is_neither_frozen_nor_saved(
    change, words, place, tmp_path
):
    layer = RelativeAttention2d(3, 5, num_heads=4).eval()
    change(layer)
    with pytest.raises(UnsupportedModelError, match=f"cannot freeze 0: it has {words}"):
        freeze(nn.Sequential(layer), images(2, 3, 7, 9))
    message = "cannot save this RelativeAttention2d: .* would not come back as it is, because"
    with pytest.raises(UnsupportedModelError, match=rf"{message} {place} \(.*\) is added"):
        save_network(layer, tmp_path / "layer")
    with pytest.raises(
        UnsupportedModelError, match=f"cannot convert RelativeAttention2d: it has {words}"
    ):
        attention_to_conv(layer, spatial=9)
    assert not (tmp_path / "layer").exists()


@pytest.mark.parametrize("gradients", [True, False])
def test_closed_gates_are_frozen_alike_with_and_without_gradients(gradients):
    x = images(1, 3, 7, 9)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))
    gated, _ = network_to_attention(network, x, content=True)
    with torch.set_grad_enabled(gradients):
        frozen = freeze(gated, x)
    assert type(frozen[0]) is nn.Conv2d


def test_scores_by_definition_are_frozen(monkeypatch):
    layer, x = RelativeAttention2d(3, 5, num_heads=9, impl="reference").eval(), images(2, 3, 7, 9)
    frozen = FrozenAttention(layer, [(7, 9)])
    monkeypatch.setattr(type(layer.encoding), "axis_scores", None)
    hi = copy.deepcopy(layer).double()
    monkeypatch.undo()
    hi = hi(x.double())
    assert_within_budget(frozen(x), hi, roundings(call, layer, x))
