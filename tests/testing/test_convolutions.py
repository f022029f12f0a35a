import copy

import pytest
import torch
from hypothesis import given, settings
from tests.testing.convolutions import convolve, rounded_differently, tap_maps
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


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_tap_maps_are_what_each_tap_does_to_a_channel(kind):
    """An impulse in one channel, seen through the window, shows the tap's column; taps are in order of displacement."""
    torch.manual_seed(0)
    conv, x = kind(6, 10, (2, 3), groups=2, bias=False), torch.zeros(1, 6, 5, 7)
    x[0, 4, 2, 3] = 1
    y, maps = conv(x)[0], tap_maps(conv, conv.weight)
    backwards = kind is nn.ConvTranspose2d
    for tap, (row, col) in enumerate((row, col) for row in range(2) for col in range(3)):
        seen = y[5:, 2 + 1 - row, 3 + 2 - col] if backwards else y[5:, 2 - row, 3 - col]
        assert torch.equal(seen, maps[tap, 5:, 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_other_digits_differ_in_the_last_place_only(dtype):
    x = torch.randn(101, dtype=torch.float64).to(dtype)
    y = rounded_differently(x, 0)
    assert 20 < (y != x).sum() < 81
    assert ((y.double() - x.double()).abs() <= 2 * torch.finfo(dtype).eps * x.double().abs()).all()
    assert torch.equal(y, rounded_differently(x, 0))
    assert not torch.equal(y, rounded_differently(x, 1))


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
