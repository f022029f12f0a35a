"""A convolution of pixels is a convolution of patches, and so nine heads of attention."""

import copy

import pytest
import torch
from tests.convert.network.network_cases import Renamed
from tests.testing.convolutions import convolve
from torch import nn
from torch.nn.functional import pixel_unshuffle

from convattn import Quadratic, RelativeAttention2d, conv_to_attention
from convattn.convert import patch_convolution
from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.testing.budget import assert_within_budget, roundings

CASES = {
    "3 in 4": (4, {"kernel_size": 3, "padding": 1}, (3, 3)),
    "7 in 3": (3, {"kernel_size": 7, "padding": 3}, (3, 3)),  # reaches exactly one patch
    "9 in 3": (3, {"kernel_size": 9, "padding": 4}, (5, 5)),  # one pixel further
    "1 x 5 in 2": (2, {"kernel_size": (1, 5), "padding": (0, 2), "bias": False}, (1, 3)),
    "3 dilated by 2 in 4": (4, {"kernel_size": 3, "padding": 2, "dilation": 2}, (3, 3)),
    "grouped": (2, {"kernel_size": 3, "padding": "same", "groups": 2}, (3, 3)),
    "pixels": (1, {"kernel_size": 5, "padding": 2}, (5, 5)),
    "1 in 3": (3, {"kernel_size": 1}, (1, 1)),
}


def references(conv, x, patch):
    """What the convolution of pixels gives, in patches: in float64, and by its definition in its own dtype."""

    def low(conv, x):
        return pixel_unshuffle(convolve(conv, x), patch)

    return pixel_unshuffle(copy.deepcopy(conv).double()(x.double()), patch), roundings(low, conv, x)


@pytest.mark.parametrize(("patch", "options", "kernel"), CASES.values(), ids=CASES)
def test_the_convolution_of_patches_computes_the_same(patch, options, kernel):
    torch.manual_seed(0)
    conv, x = nn.Conv2d(4, 6, **options), torch.randn(2, 4, 5 * patch, 7 * patch)
    made = patch_convolution(conv, patch)
    assert made.kernel_size == kernel
    assert (made.in_channels, made.out_channels) == (4 * patch**2, 6 * patch**2)
    y = made(pixel_unshuffle(x, patch))
    high, lows = references(conv, x, patch)
    assert_within_budget(y, high, lows)
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(y.roll(1, -1), high, lows)


def test_nine_heads_over_patches_compute_a_convolution_of_pixels():
    torch.manual_seed(0)
    conv, x = nn.Conv2d(3, 3, 5, padding=2), torch.randn(2, 3, 20, 28)
    layer, certificate = conv_to_attention(patch_convolution(conv, 4))
    assert (layer.num_heads, certificate.exact, certificate.passed) == (9, True, True)
    assert_within_budget(layer(pixel_unshuffle(x, 4)), *references(conv, x, 4))


def test_the_rank_of_each_tap_is_what_it_reaches():
    """So wide must a head be: p²C for the patch itself, rpC beside it, r²C in a corner."""
    torch.manual_seed(0)
    channels, patch, reach = 3, 4, 2
    conv = nn.Conv2d(channels, channels, 2 * reach + 1, padding=reach).double()
    kernel = patch_convolution(conv, patch).weight
    ranks = [
        [int(torch.linalg.matrix_rank(kernel[:, :, row, col])) for col in range(3)]
        for row in range(3)
    ]
    corner, beside, own = reach**2 * channels, reach * patch * channels, patch**2 * channels
    assert ranks == [[corner, beside, corner], [beside, own, beside], [corner, beside, corner]]


def test_heads_of_a_transformers_width_are_enough_where_ranks_add_up():
    """Of width 12, for 3 x 3 pixels of three colours in 4 x 4 patches: 48/12 in the middle, one at each neighbour."""
    torch.manual_seed(0)
    width, conv, x = 12, nn.Conv2d(3, 3, 3, padding=1), torch.randn(2, 3, 20, 28)
    patches = patch_convolution(conv, 4)
    centres, values, outputs = [], [], []
    for row in range(3):
        for col in range(3):
            left, scale, right = torch.linalg.svd(patches.weight[:, :, row, col].detach().double())
            rank = int((scale > 1e-9 * scale[0]).sum())
            for first in range(0, rank, width):
                part = slice(first, first + width)
                centres.append([row - 1.0, col - 1.0])
                values.append(right[part])
                outputs.append(left[:, part] * scale[part])
    assert len(centres) == 4 + 8
    encoding = Quadratic(12, 2, centres=centres, sharpness=128)
    layer = RelativeAttention2d(48, 48, 12, encoding, head_width=width, kernel_size=3, padding=1)
    with torch.no_grad():
        layer.values.value.copy_(torch.stack(values))
        layer.values.output.copy_(torch.stack(outputs))
        layer.bias.copy_(patches.bias)
    assert_within_budget(
        layer.double()(pixel_unshuffle(x, 4).double()).float(), *references(conv, x, 4)
    )


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(2, 2, 3),
        nn.Conv2d(2, 2, 4, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, stride=2),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
    ],
    ids=repr,
)
def test_other_forms_are_refused(conv):
    with pytest.raises(
        ArgumentError,
        match=r"^conv must be a convolution with an odd kernel, stride 1 and zero padding",
    ):
        patch_convolution(conv, 2)


def test_other_modules_and_patches_are_refused():
    with pytest.raises(
        UnsupportedModelError,
        match=r"^cannot convert Renamed: patch_convolution takes nn\.Conv2d itself",
    ):
        patch_convolution(Renamed(2, 2, 3, padding=1), 2)
    with pytest.raises(
        ArgumentError, match=r"^patch_size must be an integer of at least 1, but is 0$"
    ):
        patch_convolution(nn.Conv2d(2, 2, 3, padding=1), 0)
