"""What layers keep between calls in evaluation, and that nothing outdated is used."""

import copy
import pickle

import pytest
import torch
from tests.layers.layer_cases import by_path, hard_layer, images
from torch import nn
from torch.func import functional_call

from convattn.encodings import LinearDistance, Quadratic
from convattn.errors import ArgumentError
from convattn.layers import RelativeAttention1d
from convattn.testing.budget import assert_within_budget


@pytest.mark.parametrize(
    "write",
    [
        lambda layer: layer.encoding.centres.data.add_(1),
        lambda layer: layer.load_state_dict({**layer.state_dict(), "encoding.centres": torch.ones(9, 2)}),
        lambda layer: setattr(layer.encoding, "centres", nn.Parameter(torch.full((9, 2), 0.3))),
        lambda layer: layer.double(),
    ],
    ids=["through .data", "load_state_dict", "another parameter", "another dtype"],
)
def test_what_is_kept_follows_the_parameters(write):
    layer, x = hard_layer(sharpness=0.3).eval(), images(5, 7)
    with torch.no_grad():
        first = layer(x)
        assert torch.equal(layer(x), first)
        write(layer)
        x = x.to(layer.bias.dtype)
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))
        assert layer(x).dtype == torch.float64 or not torch.equal(layer(x), first)


def test_another_encoding_with_the_same_numbers_is_another():
    layer, x = RelativeAttention1d(3, 5, 2, Quadratic(2, 1)).eval(), images(11)
    with torch.no_grad():
        first = layer(x)
        other = LinearDistance(2, 1)
        for new, old in zip(other.parameters(), layer.encoding.parameters(), strict=True):
            new.copy_(old)
        layer.encoding = other
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))
        assert not torch.equal(layer(x), first)


def test_weights_are_made_once_in_evaluation_and_left_out_of_copies(monkeypatch):
    layer, x = hard_layer(sharpness=0.3).eval(), images(5, 7)
    calls = []
    right = type(layer.encoding).axis_tables
    monkeypatch.setattr(type(layer.encoding), "axis_tables", lambda *a, **k: calls.append(1) or right(*a, **k))
    with torch.no_grad():
        for _ in range(3):
            layer(x)
    assert len(calls) == 1
    layer(x)  # gradients are wanted
    assert len(calls) == 2
    assert len(pickle.dumps(layer)) == len(pickle.dumps(pickle.loads(pickle.dumps(layer))))
    assert not copy.deepcopy(layer)._kept._entries


def test_parameters_swapped_in_for_one_call_are_those_used():
    layer, other, x = hard_layer().eval(), hard_layer(sharpness=0.3).eval(), images(5, 7)
    with torch.no_grad():
        before = layer(x)
        swapped = functional_call(layer, {name: value.detach() for name, value in other.named_parameters()}, (x,))
        hi = by_path(copy.deepcopy(other).double(), "reference", x.double())
        assert_within_budget(swapped, hi, by_path(other, "reference", x))
        assert torch.equal(layer(x), before)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_hard_heads_are_looked_at_once(training, gradients, monkeypatch):
    """A layer found to be a convolution runs as one without looking at its heads again, until they change."""
    layer, x = hard_layer().train(training), images(5, 7)
    calls = []
    right = type(layer.encoding).axis_tables
    monkeypatch.setattr(type(layer.encoding), "axis_tables", lambda *a, **k: calls.append(1) or right(*a, **k))
    with torch.set_grad_enabled(gradients):
        first = layer(x)
        looks = len(calls)
        assert torch.equal(layer(x), first)
        assert len(calls) == looks
        layer.values.weight.data.mul_(2)  # is seen, because nothing of it is kept
        layer.bias.data.mul_(2)
        assert torch.equal(layer(x), 2 * first)
        assert len(calls) == looks
        layer.encoding.centres.data.neg_()
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))
        assert len(calls) > looks
    assert not copy.deepcopy(layer)._kept._quick


def test_the_kernel_of_hard_heads_follows_the_matrices_wherever_they_lie():
    layer, x = hard_layer().eval(), images(5, 7)
    weight = layer.values.weight
    with torch.no_grad():
        layer(x)
        weight.add_(1)  # in the same memory
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))
        weight.data = weight.data * 3  # in other memory
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))
        weight.data = weight.data.flip(0)
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))
        square = torch.randn(9, 3, 3)
        layer.values.weight, layer.bias = nn.Parameter(square), None
        layer(x)
        layer.values.weight.data = square.transpose(1, 2)  # in the same memory in another order
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))
        layer.values.weight.data = square[:, :2]  # the start of the same memory
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))


def test_hard_heads_in_other_memory_are_looked_at_once(monkeypatch):
    layer, x = hard_layer().eval(), images(5, 7)
    calls = []
    right = type(layer.encoding).axis_tables
    with torch.no_grad():
        first = layer(x)
        layer.encoding.centres.data = layer.encoding.centres.data.clone()
        layer(x)
        monkeypatch.setattr(type(layer.encoding), "axis_tables", lambda *a, **k: calls.append(1) or right(*a, **k))
        assert torch.equal(layer(x), first)
        assert not calls
        assert layer._kept.attend(x, layer, layer.geometry, layer.impl) is not None
        layer.encoding.centres.data = layer.encoding.centres.data.flip(0)
        assert not torch.equal(layer(x), first)


def test_nothing_is_kept_for_a_layer_on_another_device():
    layer, x = hard_layer().eval(), images(5, 7)
    with torch.no_grad():
        layer(x)
        assert layer._kept.attend(x, layer, layer.geometry, layer.impl) is not None
        layer.encoding.to("meta")
        assert layer._kept.attend(x, layer, layer.geometry, layer.impl) is None


def test_hard_heads_that_leak_are_not_kept_for_a_call_that_learns():
    layer, x = hard_layer(sharpness=20.0).eval(), images(5, 7)
    with torch.no_grad():
        layer(x)
    assert layer.plan(x.shape).path == "separable"
    y = layer(x)
    y.sum().backward()
    assert layer.encoding.centres.grad.abs().max() > 0


def test_dropout_is_not_passed_over_after_a_call_in_evaluation():
    layer, x = hard_layer(dropout=0.5).eval(), images(5, 7)
    with torch.no_grad():
        kept = layer(x)
        assert torch.equal(layer(x), kept)
        assert not torch.equal(layer.train()(x), kept)


def test_a_wrong_dtype_is_refused_after_a_right_one():
    layer, x = hard_layer().eval(), images(5, 7)
    with torch.no_grad():
        layer(x)
        layer.values.half()
        with pytest.raises(ArgumentError, match="dtype"):
            layer(x)


@pytest.mark.parametrize("training", [True, False])
def test_what_hard_heads_return_may_be_changed_in_place(training):
    layer, x = hard_layer().train(training), images(7, 11)
    for _ in range(2):  # the second call is the quick one
        layer.zero_grad()
        nn.functional.relu(layer(x), inplace=True).sum().backward()
        assert layer.encoding.centres.grad.count_nonzero() == 0
    expected = torch.autograd.grad(nn.functional.relu(layer(x)).sum(), layer.values.weight)[0]
    assert torch.equal(layer.values.weight.grad, expected)
