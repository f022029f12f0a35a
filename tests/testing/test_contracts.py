"""Negative controls: every contract rejects the faults that it is there to find."""

import copy

import pytest
import torch
from tests.encodings.formula_cases import FORMULAS, small_encoding
from tests.testing.attention_contract import GEOMETRIES, AttentionContract
from tests.testing.encoding_contract import FullEncodingContract
from tests.testing.faults import eight_bits, leaky
from torch.autograd.gradcheck import GradcheckError

from convattn.encodings import Quadratic
from convattn.layers import RelativeAttention2d

FAULTS = {
    "one wrong border row": lambda y, *_: torch.cat([y[..., :1, :] * 1.001, y[..., 1:, :]], dim=-2),
    "rows and columns exchanged": lambda y, *_: (
        y.flatten(2).view(*y.shape[:2], y.shape[3], y.shape[2]).mT
    ),
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
        layer = RelativeAttention2d(
            in_channels, out_channels, num_heads=2, encoding="quadratic", **options
        )
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
        layer.attention = lambda x: leaky(right(x))
        return layer


def test_weights_that_leak_are_rejected():
    Faulty().test_attention_weights_are_those_of_the_definition({})
    with pytest.raises(AssertionError, match="result: error"):
        FaultyWeights().test_attention_weights_are_those_of_the_definition({})


WRONG_GEOMETRIES = {
    "stride": {"padding": [(2, 0)] * 2},
    "even window": {"padding": [(1, 0)] * 2},
    "wide window": {"padding_mode": "zeros"},
    "reflect": {"padding_mode": "replicate"},
    "circular": {"padding_mode": "zeros"},
    "spread": {"padding": [(2, 0)] * 2},
}
"""Arguments that put queries or keys elsewhere, and keep the output's size."""


class Misplaced(Faulty):
    """The contract, on a layer that was given other arguments."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong

    def create(self, in_channels, out_channels, **options):
        self.geometry = super().create(in_channels, out_channels, **options).geometry
        return super().create(in_channels, out_channels, **options | self.wrong)

    def dense(self, layer, x, *, backwards=False):
        placed = copy.deepcopy(layer)
        placed._geometry = self.geometry
        return super().dense(placed, x, backwards=backwards)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_queries_and_keys_elsewhere_are_rejected(name):
    with pytest.raises(AssertionError, match="result: error"):
        Misplaced(WRONG_GEOMETRIES[name]).test_any_geometry_is_attention_by_definition(
            GEOMETRIES[name]
        )


def test_padding_on_the_other_side_is_rejected():
    with pytest.raises(AssertionError, match="result: error"):
        Misplaced({"padding": [(-1, 2)] * 2}).test_cropped_and_padded_unevenly()


def rounded_further(y, *_):
    """Rounds to a narrower dtype, but leaves float32."""
    if y.dtype == torch.float64:
        return y.float().double()
    if y.dtype == torch.bfloat16:
        return y.to(torch.float8_e5m2).to(
            y.dtype
        )  # two bits are left of seven; of three, rounding may explain the loss
    return y if y.dtype == torch.float32 else eight_bits(y)


def as_if_contiguous(_, layer, x):
    """Reads the memory of the input without looking at its strides."""
    return layer.forward(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()))


def at_least_one_image(y, *_):
    return y if len(y) else y.new_zeros(1, *y.shape[1:])


def groups_exchanged(y, layer, _):
    return torch.cat(y.chunk(layer.groups, dim=1)[::-1], dim=1)


def other_in_training(y, layer, _):
    return y + 1e-6 if layer.training else y


def without_unit_axes(y, *_):
    return y.squeeze()


def zero_written(y, _, x):
    x[:, 0] = 0
    return y


VALUES = "test_output_is_attention_by_definition"
CLAUSES = [
    *(
        (rounded_further, VALUES, dtype, "error")
        for dtype in (torch.float64, torch.bfloat16, torch.float16)
    ),
    (as_if_contiguous, "test_channels_last_input", None, "error"),
    (as_if_contiguous, "test_input_that_is_a_view", None, "error"),
    (at_least_one_image, "test_small_batches", 0, "shapes differ"),
    (without_unit_axes, "test_small_batches", 1, "shapes differ"),
    (without_unit_axes, "test_one_pixel", None, "shapes differ"),
    (groups_exchanged, "test_groups_are_blocks_of_the_matrices", None, "error"),
]


@pytest.mark.parametrize(("fault", "clause", "argument", "message"), CLAUSES)
def test_a_fault_that_one_clause_alone_sees_is_rejected(fault, clause, argument, message):
    contract = Faulty(fault)
    contract.test_output_is_attention_by_definition(torch.float32)
    with pytest.raises(AssertionError, match=f"result: {message}"):
        getattr(contract, clause)(*([] if argument is None else [argument]))


@pytest.mark.parametrize(
    ("fault", "clause"),
    [
        (other_in_training, "test_modes_and_earlier_calls_change_nothing"),
        (zero_written, "test_input_is_left_alone"),
    ],
)
def test_what_must_be_the_same_bit_by_bit_is_noticed(fault, clause):
    getattr(Faulty(), clause)()
    with pytest.raises(AssertionError):
        getattr(Faulty(fault), clause)()


class FaultyEncoding(FullEncodingContract):
    """The contract, on an encoding whose scores a fault has changed."""

    formula = FORMULAS["quadratic"]

    def __init__(self, fault=None):
        self.fault = fault

    def create(self, num_heads, dims):
        encoding = small_encoding("quadratic", num_heads, dims)
        if self.fault is not None:
            right = encoding.axis_scores
            encoding.axis_scores = lambda displacement: self.fault(right(displacement))
        return encoding


def test_a_right_encoding_passes():
    FaultyEncoding().test_scores_are_the_formula(2, torch.float32)
    FaultyEncoding().test_tables_hold_the_scores_of_a_grid(2)


@pytest.mark.parametrize(
    "fault",
    [
        lambda scores: scores * (1 + 1e-5),
        lambda scores: scores.half().float(),
        lambda scores: scores.flip(0),
    ],
    ids=["a part in 1e5", "half precision", "heads in another order"],
)
def test_a_fault_in_the_scores_is_rejected(fault):
    for check in (
        "test_scores_at_whole_pixels_are_the_formula",
        "test_tables_hold_the_scores_of_a_grid",
    ):
        with pytest.raises(AssertionError, match="result: error"):
            getattr(FaultyEncoding(fault), check)(2)


def test_scores_in_the_dtype_of_narrow_parameters_are_rejected():
    contract = FaultyEncoding(lambda scores: scores.bfloat16().to(scores.dtype))
    with pytest.raises(AssertionError, match="result: error"):
        contract.test_narrow_parameters_are_scored_in_the_dtype_of_the_displacements(torch.bfloat16)


def test_tables_in_another_order_are_rejected():
    contract = FaultyEncoding(lambda scores: scores.flip(-1))
    with pytest.raises(AssertionError, match="result: error"):
        contract.test_tables_hold_the_scores_of_a_grid(3)


@pytest.mark.parametrize("dims", [2, 3])
def test_features_that_every_axis_adds_are_rejected(dims, monkeypatch):
    right = Quadratic.axis_feature_vectors
    monkeypatch.setattr(Quadratic, "axis_feature_vectors", lambda *args: right(*args) + 1e-5)
    with pytest.raises(AssertionError, match="result: error"):
        FaultyEncoding().test_features_of_the_axes_add_up(dims, torch.float32)
