"""Negative controls: every contract rejects the faults that it is there to find."""

import copy

import pytest
import torch
from tests.encodings.formula_cases import FORMULAS, small_encoding
from torch.autograd.gradcheck import GradcheckError

from convattn.encodings import Quadratic
from convattn.grid import Geometry
from convattn.layers import RelativeAttention2d
from convattn.testing.contracts import AttentionContract, EncodingContract
from convattn.testing.dense import dense_attention, dense_weights


def leak(weights):
    """Moves 1e-5 of every query's attention to the last key."""
    leaked = weights * (1 - 1e-5)
    return torch.cat([leaked[..., :-1], leaked[..., -1:] + 1e-5], dim=-1)


def leaky(_, layer, x):
    weights = leak(dense_weights(layer, x, FORMULAS["quadratic"])[0].flatten(-2)).flatten(1, 2)
    mixed = torch.einsum("hqk,bck->bhcq", weights, x.flatten(2))
    y = torch.einsum("bhcq,hoc->boq", mixed, layer.values.weight) + layer.bias[:, None]
    return y.view(*y.shape[:2], *x.shape[2:])


def half(_, layer, x):
    rounded = RelativeAttention2d(3, 5, 2, Quadratic(2, 2))
    rounded.load_state_dict(layer.state_dict())
    with torch.no_grad():
        rounded.values.weight.copy_(layer.values.weight.half())
    return dense_attention(rounded, x, FORMULAS["quadratic"])


FAULTS = {
    "a leak of 1e-5 in the softmax": leaky,
    "values in half precision": half,
    "one wrong border row": lambda y, *_: torch.cat([y[..., :1, :] * 1.001, y[..., 1:, :]], dim=-2),
    "rows and columns exchanged": lambda y, *_: y.flatten(2).view(*y.shape[:2], y.shape[3], y.shape[2]).mT,
    "bias left out": lambda y, layer, *_: y - layer.bias[:, None, None],
    "one channel twice": lambda y, *_: torch.cat([y[:, :1], y[:, :-1]], dim=1),
    "not a number": lambda y, *_: torch.where(y == y.max(), torch.nan, y),
    "input read in another memory order": lambda y, *_: y.flip(0),
}


class Faulty(AttentionContract):
    """The contract, on a layer whose output a fault has changed."""

    formula = FORMULAS["quadratic"]

    def __init__(self, fault=None):
        self.fault = fault

    def create(self, in_channels, out_channels, **options):
        layer = RelativeAttention2d(in_channels, out_channels, 2, "quadratic", **options)
        if self.fault is not None:
            layer.register_forward_hook(lambda layer, inputs, y: self.fault(y, layer, *inputs))
        return layer


def test_a_right_layer_passes():
    contract = Faulty()
    contract.test_output_is_attention_by_definition(torch.float32)
    contract.test_gradients_are_those_of_the_definition()
    contract.test_state_dict_and_copies_carry_everything()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_in_the_output_is_rejected(fault):
    with pytest.raises(AssertionError, match="result: error"):
        Faulty(fault).test_output_is_attention_by_definition(torch.float32)


def test_a_fault_in_the_gradients_alone_is_rejected():
    contract = Faulty(lambda y, *_: y + 1e-5 * (y - y.detach()))
    contract.test_output_is_attention_by_definition(torch.float32)
    with pytest.raises(AssertionError, match=r"gradient of .*: error"):
        contract.test_gradients_are_those_of_the_definition()
    with pytest.raises(GradcheckError):
        Faulty(lambda y, *_: y + 0.1 * (y - y.detach())).test_gradcheck()


class FaultyWeights(Faulty):
    def create(self, in_channels, out_channels, **options):
        layer = super().create(in_channels, out_channels, **options)
        right = layer.attention
        layer.attention = lambda x: leak(right(x))
        return layer


def test_weights_that_leak_are_rejected():
    Faulty().test_attention_weights_are_those_of_the_definition({})
    with pytest.raises(AssertionError, match="result: error"):
        FaultyWeights().test_attention_weights_are_those_of_the_definition({})


class Unpadded(Faulty):
    """The contract, on a layer that takes every padding for zeros."""

    def dense(self, layer, x, *, backwards=False):
        padded = copy.deepcopy(layer)
        padded.geometry = Geometry.parse(2, padding=1, padding_mode="reflect")
        return super().dense(padded, x, backwards=backwards)


def test_a_path_that_pads_wrongly_is_rejected():
    with pytest.raises(AssertionError, match="result: error"):
        Unpadded().test_any_geometry_is_attention_by_definition({"padding": 1})


class FaultyEncoding(EncodingContract):
    """The contract, on an encoding whose scores a fault has changed."""

    formula = FORMULAS["quadratic"]

    def __init__(self, fault=None):
        self.fault = fault

    def create(self, num_heads, dims):
        encoding = small_encoding("quadratic", num_heads, dims)
        if self.fault is not None:
            right = encoding._axis_score
            encoding._axis_score = lambda axis, displacement: self.fault(right(axis, displacement))
        return encoding


def test_a_right_encoding_passes():
    FaultyEncoding().test_scores_are_the_formula(2, torch.float32)
    FaultyEncoding().test_table_holds_the_scores_of_a_grid(2)


@pytest.mark.parametrize(
    "fault",
    [lambda scores: scores * (1 + 1e-5), lambda scores: scores.half().float(), lambda scores: scores.flip(0)],
    ids=["a part in 1e5", "half precision", "heads in another order"],
)
def test_a_fault_in_the_scores_is_rejected(fault):
    for check in ("test_scores_at_whole_pixels_are_the_formula", "test_table_holds_the_scores_of_a_grid"):
        with pytest.raises(AssertionError, match="result: error"):
            getattr(FaultyEncoding(fault), check)(2)


def test_tables_in_another_order_are_rejected():
    contract = FaultyEncoding(lambda scores: scores.flip(-1))
    with pytest.raises(AssertionError, match="result: error"):
        contract.test_tables_of_the_axes_add_up(3)


@pytest.mark.parametrize("dims", [2, 3])
def test_features_that_every_axis_adds_are_rejected(dims, monkeypatch):
    right = Quadratic._axis_features
    monkeypatch.setattr(Quadratic, "_axis_features", lambda *args: right(*args) + 1e-5)
    with pytest.raises(AssertionError, match="result: error"):
        FaultyEncoding().test_features_of_the_axes_add_up(dims, torch.float32)
