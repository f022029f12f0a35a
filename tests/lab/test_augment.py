from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from convattn.budget import assert_within_budget, roundings
from convattn.data import horizontal_flip, mirror, normalise, random_crop
from convattn.errors import ArgumentError, ShapeError
from convattn.lab.augment import views


def images(batch=11, channels=3, rows=5, cols=7):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 256, (batch, channels, rows, cols), generator=generator).to(torch.uint8)


def crop_by_slicing(image, padding, row, col):
    """One image at a time: paste onto a black canvas, then cut."""
    channels, rows, cols = image.shape
    canvas = torch.zeros(channels, rows + 2 * padding, cols + 2 * padding, dtype=torch.uint8)
    canvas[:, padding : padding + rows, padding : padding + cols] = image
    return canvas[:, row : row + rows, col : col + cols]


@given(padding=st.integers(0, 6), seed=st.integers(0, 2**31))
def test_every_crop_is_a_cut_of_its_own_padded_image(padding, seed):
    batch = images()
    cropped = random_crop(batch, padding=padding, generator=torch.Generator().manual_seed(seed))
    shifts = torch.randint(
        0, 2 * padding + 1, (2, len(batch)), generator=torch.Generator().manual_seed(seed)
    )
    expected = [
        crop_by_slicing(image, padding, *shift)
        for image, shift in zip(batch, shifts.T.tolist(), strict=True)
    ]
    assert torch.equal(cropped, torch.stack(expected))


@given(padding=st.integers(0, 4), seed=st.integers(0, 2**31))
def test_reflected_crop_is_a_cut_of_the_reflected_image(padding, seed):
    batch = images()
    options = {"padding": padding, "border": "reflect"}
    cropped = random_crop(batch, generator=torch.Generator().manual_seed(seed), **options)
    canvas = nn.functional.pad(batch.double(), (padding,) * 4, mode="reflect").to(torch.uint8)
    shifts = torch.randint(
        0, 2 * padding + 1, (2, len(batch)), generator=torch.Generator().manual_seed(seed)
    )
    rows, cols = batch.shape[2:]
    for found, framed, (row, col) in zip(cropped, canvas, shifts.T.tolist(), strict=True):
        assert torch.equal(found, framed[:, row : row + rows, col : col + cols])


def test_image_too_small_to_be_reflected_is_refused():
    with pytest.raises(
        ArgumentError,
        match=r"padding must be below 5, the images' shorter side, to reflect, but is 5",
    ):
        random_crop(images(), padding=5, generator=torch.Generator(), border="reflect")


def test_chosen_images_are_mirrored():
    batch, chosen = images(batch=5), torch.tensor([True, False, False, True, True])
    mirrored = mirror(batch, chosen)
    assert torch.equal(mirrored[chosen], batch[chosen].flip(-1))
    assert torch.equal(mirrored[~chosen], batch[~chosen])


def test_crops_take_every_shift_equally_often():
    image = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
    image[..., 2, 2] = 1
    draws = 9000
    cropped = random_crop(
        image.expand(draws, 1, 5, 5), padding=1, generator=torch.Generator().manual_seed(2)
    )
    counts = cropped.sum(dim=(0, 1), dtype=torch.int64)
    assert counts.sum() == draws
    inner = counts[1:4, 1:4].double()
    chi_square = ((inner - draws / 9) ** 2 / (draws / 9)).sum()
    assert chi_square < 26.1  # 8 degrees of freedom, p = 0.001; the seed is fixed


@given(seed=st.integers(0, 2**31))
def test_flip_mirrors_whole_images(seed):
    batch = images()
    flipped = horizontal_flip(batch, generator=torch.Generator().manual_seed(seed))
    for before, after in zip(batch, flipped, strict=True):
        assert torch.equal(after, before) or torch.equal(after, before.flip(-1))


def test_flip_takes_about_half():
    batch = images(batch=2000, channels=1)
    flipped = horizontal_flip(batch, generator=torch.Generator().manual_seed(3))
    share = (flipped != batch).flatten(1).any(dim=1).double().mean()
    assert abs(share - 0.5) < 3.3 * 0.5 / 2000**0.5


def test_same_generator_state_same_result_and_global_state_untouched():
    before = torch.random.get_rng_state()
    for augment in (partial(random_crop, padding=4), horizontal_flip):
        first = augment(images(), generator=torch.Generator().manual_seed(5))
        second = augment(images(), generator=torch.Generator().manual_seed(5))
        assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_normalise_matches_the_formula_channel_by_channel():
    batch, mean, std = images(), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

    def formula(batch, mean, std):
        return torch.stack([(batch[:, c] / 255 - mean[c]) / std[c] for c in range(3)], 1)

    hi = formula(batch.double(), mean, std)
    lows = roundings(formula, batch.float(), torch.tensor(mean), torch.tensor(std))
    assert_within_budget(normalise(batch, mean, std), hi, lows)


def test_negative_padding_is_refused():
    with pytest.raises(ArgumentError, match="padding must be an integer of at least 0, but is -1"):
        random_crop(images(), padding=-1, generator=torch.Generator())


def test_statistics_must_match_the_channels():
    with pytest.raises(
        ShapeError, match="mean and std need one value for each of 3 channels: got 1 and 3"
    ):
        normalise(images(), (0.5,), (0.5, 0.5, 0.5))


def test_views_are_the_images_and_their_mirror_images():
    batch = images().double()
    assert [view.tolist() for view in views(batch, "none")] == [batch.tolist()]
    assert [view.tolist() for view in views(batch, "mirror")] == [
        batch.tolist(),
        batch.flip(-1).tolist(),
    ]
