import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from convattn.budget import assert_within_budget, roundings
from convattn.data import crop, mirror, normalise
from convattn.errors import ShapeError, UnknownNameError
from convattn.lab.augment import views


def images(batch=11, channels=3, rows=5, cols=7):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 256, (batch, channels, rows, cols), generator=generator).to(torch.uint8)


def shifts(seed, most=6, batch=11):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, (2, batch), generator=generator)


@given(seed=st.integers(0, 2**31))
@pytest.mark.parametrize(("border", "most"), [("black", 9), ("reflect", 4)])
def test_every_crop_is_a_cut_of_its_own_padded_image(border, most, seed):
    batch, drawn = images(), shifts(seed, most)
    mode = {"black": "constant", "reflect": "reflect"}[border]
    framed = nn.functional.pad(batch.double(), (most,) * 4, mode=mode).to(torch.uint8)
    rows, cols = batch.shape[2:]
    expected = []
    for canvas, (row, col) in zip(framed, (drawn + most).T.tolist(), strict=True):
        expected.append(canvas[:, row : row + rows, col : col + cols])
    assert torch.equal(crop(batch, drawn, border), torch.stack(expected))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_shift_beyond_what_an_image_reflects_is_reflected_again(size):
    line = images(batch=1, channels=1, rows=1, cols=size)
    there_and_back = [*range(size), *range(size - 2, 0, -1)]
    for shift in range(-13, 14):
        cropped = crop(line, torch.tensor([[0], [shift]]), "reflect")
        places = [there_and_back[(shift + col) % len(there_and_back)] for col in range(size)]
        assert torch.equal(cropped, line[..., places]), shift


def test_chosen_images_are_mirrored():
    batch, chosen = images(batch=5), torch.tensor([True, False, False, True, True])
    mirrored = mirror(batch, chosen)
    assert torch.equal(mirrored[chosen], batch[chosen].flip(-1))
    assert torch.equal(mirrored[~chosen], batch[~chosen])


def test_normalise_matches_the_formula_channel_by_channel():
    batch, mean, std = images(), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

    def formula(batch, mean, std):
        return torch.stack([(batch[:, c] / 255 - mean[c]) / std[c] for c in range(3)], 1)

    hi = formula(batch.double(), mean, std)
    lows = roundings(formula, batch.float(), torch.tensor(mean), torch.tensor(std))
    assert_within_budget(normalise(batch, mean, std), hi, lows)
    tensors = torch.tensor(mean), torch.tensor(std)
    assert torch.equal(normalise(batch, *tensors), normalise(batch, mean, std))


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


def test_an_unknown_border_is_refused(without_type_checks):
    with pytest.raises(UnknownNameError, match="unknown border 'zeros'"):
        crop(images(), torch.zeros(2, len(images()), dtype=torch.int64), "zeros")
