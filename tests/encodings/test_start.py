"""To how many keys heads attend at the start, and starts that are matched to a table's."""

import copy
from functools import partial

import pytest
import torch

from convattn import RelativeAttention2d
from convattn.budget import Sums, assert_within_budget, roundings
from convattn.encodings import Distance, LearnedAxial, Quadratic, Sinusoidal
from convattn.encodings.start import attended_keys, start_like_table

HEADS, SIZE, WIDTH = 5, 7, 13


def keys_of_layer(encoding, dtype):
    """The same number from the attention of a layer."""
    layer = RelativeAttention2d(2, 3, num_heads=HEADS, encoding=copy.deepcopy(encoding)).to(dtype)
    weights = layer.attention((SIZE, SIZE)).detach().flatten(3).flatten(1, 2)
    return torch.special.entr(weights).sum(-1).mean().exp()


@pytest.mark.parametrize("kind", [Quadratic, Sinusoidal, Distance])
def test_number_of_keys_is_that_of_a_layers_attention(kind):
    torch.manual_seed(0)
    encoding = kind(HEADS, 2)
    found, hi = torch.tensor(attended_keys(encoding, SIZE)), keys_of_layer(encoding, torch.float64)
    lows = roundings(partial(keys_of_layer, dtype=torch.float32), encoding)
    entropy = Sums(
        SIZE**2, hi * hi.log()
    )  # moves by that share of the number, which is its exponential
    assert_within_budget(found, hi, lows, sums=entropy)


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
    # the factor is exact up to the rounding of the weights
    found, *moved = roundings(
        lambda it: torch.tensor(attended_keys(it, SIZE), dtype=torch.float64), encoding
    )
    hi = torch.tensor(wanted, dtype=torch.float64)
    assert_within_budget(found, hi, [hi + other - found for other in moved])
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(found * (1 + 1e-5), hi, [hi + other - found for other in moved])


def test_encoding_without_values_is_left_alone():
    with torch.device("meta"):
        encoding = Distance(HEADS, 2)
        before = [(name, id(held), held._version) for name, held in encoding.named_parameters()]
        state = torch.get_rng_state()
        start_like_table(encoding, size=SIZE, width=WIDTH)
    assert [(name, id(held), held._version) for name, held in encoding.named_parameters()] == before
    assert torch.equal(torch.get_rng_state(), state)
