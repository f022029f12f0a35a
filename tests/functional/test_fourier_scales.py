"""Channels of one image with numbers of very different size, or not finite: each is filtered by itself."""

from functools import partial

import pytest
import torch

from convattn.budget import Sums, assert_within_budget, roundings
from convattn.functional import (
    attend,
    attention_weights,
    displacement_scores,
)
from convattn.functional import fourier as module
from convattn.functional.fourier import filter_images, fourier_attention, fourier_filters
from convattn.grid import Axis

AXES = (Axis(range(0, 13, 2), 13), Axis(range(11), 11))
HEADS, GROUPS = 3, 6
SCALES = [1e-3, 1e12, 1.0, 1e-9, 1e6, 1e3]


def inputs(scales):
    """A table of wide heads, images whose channels are of these scales, and a number per head and channel."""
    generator = torch.Generator().manual_seed(0)
    down, across = (axis.displacements().double() for axis in AXES)
    centres = torch.tensor([[0.0, 1.0], [-2.0, 0.5], [1.0, -1.0]]).double()
    table = -0.1 * (
        (down[None, :, None] - centres[:, 0, None, None]) ** 2
        + (across - centres[:, 1, None, None]) ** 2
    )
    keys = torch.randn(2, len(scales), *(axis.keys for axis in AXES), generator=generator)
    maps = torch.randn(HEADS, len(scales), len(scales) // GROUPS, generator=generator)
    return table.float(), keys * torch.tensor(scales)[:, None, None], maps


def fourier(table, keys, maps):
    return fourier_attention(fourier_filters(table, AXES), AXES, keys, maps, GROUPS)


def reference(table, keys, maps):
    y = attend(attention_weights(displacement_scores(table, AXES)), keys, maps, GROUPS)
    return y.unflatten(-1, [len(axis.queries) for axis in AXES])


def gradients(compute, table, *leaves):
    """Returns the output and the gradients of images and matrices; the upstream gradient is as small as the images."""
    leaves = [tensor.detach().requires_grad_() for tensor in leaves]
    y = compute(table, *leaves)
    weights = leaves[0].detach().abs().amax((0, 2, 3)).view(-1, 1, 1)
    return {
        "y": y.detach(),
        **dict(
            zip(("x", "maps"), torch.autograd.grad((y / weights**2).sum(), leaves), strict=True)
        ),
    }


def test_every_channel_is_within_its_own_budget():
    given = inputs(SCALES)
    found, lows = gradients(fourier, *given), roundings(partial(gradients, reference), *given)
    table, *others = (tensor.double() for tensor in given)
    hi, absolute = (
        gradients(reference, table, *leaves) for leaves in (others, [leaf.abs() for leaf in others])
    )
    counts = {
        "y": None,
        "x": None,
        "maps": len(others[0]) * found["y"][0, 0].numel(),
    }  # a mean of an image per query
    for channel in range(GROUPS):
        for name, count in counts.items():
            mine, exact, terms, *several = (
                results[name][:, channel] for results in (found, hi, absolute, *lows)
            )
            sums = count and Sums(count, terms)
            assert_within_budget(mine, exact, several, f"{name} of channel {channel}", sums=sums)


def test_the_rounding_of_a_large_channel_in_a_small_one_is_noticed():
    """Negative control: as a real and an imaginary part of one transform they would share it."""
    given = inputs(SCALES)
    y = fourier(*given)
    y[:, 0] += torch.finfo(y.dtype).eps * y[:, 1]
    hi, lows = reference(*(tensor.double() for tensor in given)), roundings(reference, *given)
    assert_within_budget(y[:, 1], hi[:, 1], [low[:, 1] for low in lows])
    with pytest.raises(AssertionError, match="error"):
        assert_within_budget(y[:, 0], hi[:, 0], [low[:, 0] for low in lows])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_in_its_image_and_group(bad):
    table, keys, maps = inputs([1.0] * GROUPS)
    clean = fourier(table, keys, maps)
    keys[1, 2, 3, 4] = bad
    y = fourier(table, keys, maps)
    assert not y[1, 2].isfinite().any()
    y[1, 2] = clean[1, 2]
    assert torch.equal(y, clean)
    keys.requires_grad_()
    fourier(table, keys, maps).nan_to_num().sum().backward()
    assert keys.grad[0].isfinite().all()
    assert keys.grad[1, [0, 1, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_pieces_of_channels_and_groups_give_what_the_whole_gives(groups, monkeypatch):
    """All channels at once, a few groups at a time, or a few channels of one group."""
    table, keys, _ = inputs([1.0] * 6)
    maps, filters = torch.randn(HEADS, 6, 6 // groups), fourier_filters(table, AXES)
    given = [t.detach() for t in (keys, maps, filters.kernels, filters.reciprocals)]

    def computed(*leaves):
        leaves = [leaf.requires_grad_() for leaf in leaves]
        y = filter_images(*leaves, AXES, groups)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]

    hi, whole = computed(*(t.double() for t in given)), roundings(computed, *given)
    monkeypatch.setattr(module, "_CHANNEL_BYTES", 1)
    for part, right, *lows in zip(computed(*given), hi, *whole, strict=True):
        assert_within_budget(part, right, lows)


def test_lengths_have_small_prime_factors():
    assert [module.quick_length(least) for least in (1, 31, 127, 447)] == [2, 32, 128, 450]
