"""To how many keys heads attend at the start, and starts that are matched to a table's."""

import copy

import pytest
import torch

from convattn import RelativeAttention2d
from convattn.encodings import Distance, LearnedAxial, Quadratic, Sinusoidal
from convattn.encodings.start import attended_keys, start_like_table
from convattn.testing.budget import assert_within_budget

HEADS, SIZE, WIDTH = 5, 7, 13


def keys_of_layer(encoding, dtype):
    """The same number from the attention of a layer."""
    layer = RelativeAttention2d(2, 3, HEADS, copy.deepcopy(encoding)).to(dtype)
    weights = layer.attention((SIZE, SIZE)).detach().flatten(3).flatten(1, 2)
    return torch.special.entr(weights).sum(-1).mean().exp()


@pytest.mark.parametrize("kind", [Quadratic, Sinusoidal, Distance])
def test_number_of_keys_is_that_of_a_layers_attention(kind):
    torch.manual_seed(0)
    encoding = kind(HEADS, 2)
    found = torch.tensor(attended_keys(encoding, SIZE))
    assert_within_budget(found, keys_of_layer(encoding, torch.float64), keys_of_layer(encoding, torch.float32))


@pytest.mark.parametrize("kind", [Sinusoidal, Distance])
def test_start_of_a_table_has_the_entropy_of_that_table(kind):
    torch.manual_seed(0)
    encoding = kind(HEADS, 2)
    torch.manual_seed(1)
    start_like_table(encoding, size=SIZE, width=WIDTH)
    torch.manual_seed(1)
    if kind is Distance:
        drawn = Distance(HEADS, 2)  # draws what the start draws for it, before the table
        assert torch.equal(drawn.inner.weight, encoding.inner.weight)
    wanted = attended_keys(LearnedAxial(HEADS, 2, extent=SIZE, width=WIDTH), SIZE)
    rounded = copy.deepcopy(encoding)  # the factor is exact up to the rounding of the weights
    with torch.no_grad():
        last = rounded.outer.weight if isinstance(rounded, Distance) else rounded.head_vectors
        last *= 1 + torch.finfo(torch.float32).eps
    numbers = (attended_keys(encoding, SIZE), wanted, attended_keys(rounded, SIZE))
    assert_within_budget(*(torch.tensor(number, dtype=torch.float64) for number in numbers))


def test_encoding_without_values_is_left_alone():
    with torch.device("meta"):
        encoding = Distance(HEADS, 2)
        before = [(name, id(held), held._version) for name, held in encoding.named_parameters()]
        state = torch.get_rng_state()
        start_like_table(encoding, size=SIZE, width=WIDTH)
    assert [(name, id(held), held._version) for name, held in encoding.named_parameters()] == before
    assert torch.equal(torch.get_rng_state(), state)
