import copy

import pytest
import torch
from hypothesis import given, settings
from tests.testing.convolutions import convolve, rounded_differently
from tests.testing.keys import HOLE, key_index, take_keys
from tests.testing.strategies import convolutions_with_images
from torch import nn

from convattn.budget import assert_within_budget


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module inside strategies"
)  # the type check does
@settings(max_examples=60)
@given(convolutions_with_images())
def test_convolution_by_definition_is_torchs(case):
    conv, x = case
    hi = copy.deepcopy(conv).double()(x.double())
    from_other_digits = [conv(rounded_differently(x, seed)) for seed in range(4)]
    for number, candidate in enumerate(
        [conv(x), convolve(conv, x), convolve(conv, x, backwards=True)]
    ):
        others = [conv(x), convolve(conv, x), convolve(conv, x, backwards=True)]
        del others[number]
        assert_within_budget(candidate, hi, others + from_other_digits)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
def test_key_index_pads_as_torch_does(mode):
    x = torch.randn(2, 3, 5, 7)
    indices = [
        key_index(5, (2, 1), "zeros" if mode == "constant" else mode),
        key_index(7, (0, 4), "zeros" if mode == "constant" else mode),
    ]
    assert torch.equal(take_keys(x, indices), nn.functional.pad(x, (0, 4, 2, 1), mode=mode))


def test_key_index_crops_after_padding():
    assert key_index(3, (-1, 2), "zeros") == [1, 2, HOLE, HOLE]
    assert key_index(1, (-2, 2), "zeros") == [HOLE]
