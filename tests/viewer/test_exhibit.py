"""A network as it is shown: its pictures, what is taken, and what is refused."""

import math

import numpy as np
import pytest
import torch

from convattn import AttentionNet, view
from convattn.errors import ArgumentError
from convattn.viewer import Exhibit

IMAGES = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network():
    return AttentionNet(width=8, depth=1, heads=4, ffn=8)


@pytest.mark.parametrize(
    "numbers", [torch.full((3,), 0.5), np.full(3, 0.5), [0.5] * 3, [torch.tensor(0.5)] * 3]
)
def test_mean_and_std_become_floats(numbers, without_type_checks):
    exhibit = Exhibit(network(), IMAGES, mean=numbers, std=numbers)
    assert exhibit.mean == exhibit.std == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("value", [0.5, None, "1.0", [[1.0] * 3], (math.nan, 1.0, 1.0)])
def test_what_is_no_list_of_finite_numbers_is_refused(name, value, without_type_checks):
    numbers = {"mean": (0.0,) * 3, "std": (1.0,) * 3, name: value}
    message = rf"{name} must be one finite number for each of 3 channels, but is "
    with pytest.raises(ArgumentError, match=message):
        Exhibit(network(), IMAGES, **numbers)
    with pytest.raises(ArgumentError, match=message):
        view(network(), IMAGES, **numbers)


def test_std_is_positive_and_given_with_mean():
    message = "std must be positive numbers, given together with mean"
    for numbers in ({"mean": (0.5,) * 3}, {"mean": (0.5,) * 3, "std": (1.0, 0.0, 1.0)}):
        with pytest.raises(ArgumentError, match=message):
            Exhibit(network(), IMAGES, **numbers)


@pytest.mark.parametrize(
    ("images", "shown"),
    [
        (torch.rand(3, 8, 8), r"\(3, 8, 8\)"),
        (torch.rand(0, 3, 8, 8), r"\(0, 3, 8, 8\)"),
        ([[1.0]], "of type list"),
        (
            torch.utils.data.DataLoader(IMAGES),
            r"of type DataLoader: .* next\(iter\(loader\)\)\[0\]",
        ),
    ],
)
def test_images_of_another_shape_are_refused(images, shown, without_type_checks):
    message = rf"images must be .*of shape \(images, channels, rows, cols\), .*but is {shown}"
    with pytest.raises(ArgumentError, match=message):
        Exhibit(network(), images)


@pytest.mark.parametrize("images", [(IMAGES * 255).byte(), IMAGES / 0])
def test_images_are_finite_floating_point_numbers(images, without_type_checks):
    with pytest.raises(ArgumentError, match="images must be finite floating-point numbers"):
        Exhibit(network(), images)


def test_a_network_is_a_module(without_type_checks):
    with pytest.raises(ArgumentError, match=r"network must be a network \(torch.nn.Module\), but"):
        Exhibit(lambda images: images, IMAGES)


def test_pictures_without_a_preparation_lie_between_their_extremes():
    (picture,) = Exhibit(network(), 5 * IMAGES - 2).pictures()
    assert (picture.min(), picture.max()) == (0, 255)
    assert Exhibit(network(), torch.ones(1, 3, 4, 5)).pictures().tolist() == [[[[0] * 3] * 5] * 4]


def test_pictures_of_other_channels_are_grey():
    for channels in (1, 2):
        numbers = (0.0,) * channels, (1.0,) * channels
        exhibit = Exhibit(network(), IMAGES[:, :channels], mean=numbers[0], std=numbers[1])
        grey = exhibit.pictures()
        assert grey.shape == (1, 8, 8, 3)
        assert torch.equal(grey[..., 0], grey[..., 2])


def test_what_a_picture_cuts_off_is_said():
    images = torch.tensor([0.0, 0.5, 1.0, 1.0]).expand(3, 3, 2, 4).clone()
    images[1, 0, 0, :3] = torch.tensor([-0.5, 1.5, 2.0])
    images[2, 0, 0, 0] = -1e-4  # less than a picture in bytes can show
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    prepared = (images - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    first, second, third = Exhibit(network(), prepared, mean=mean, std=std).notes()
    assert first == third == ""
    assert second.startswith(
        "12.5% of this image's numbers lie outside 0 to 1 before normalisation (from -0.5 to 2)."
    )
    assert Exhibit(network(), prepared).notes() == ["", "", ""]
