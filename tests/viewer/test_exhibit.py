"""A network as it is shown: what is taken, and what is refused."""

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from convattn import AttentionNet, view
from convattn.errors import ArgumentError, ShapeError
from convattn.layers import RelativeAttention2d
from convattn.viewer import Exhibit, build_scene


def _network(channels=3):
    return AttentionNet(width=8, depth=1, heads=4, ffn=8, in_channels=channels)


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_mean_and_std_are_finite(name, value):
    given = {"mean": (0.0,) * 3, "std": (1.0,) * 3, name: (value, 1.0, 1.0)}
    with pytest.raises(
        ArgumentError, match=rf"{name} must be one finite number for each of 3 channels"
    ):
        Exhibit(_network(), torch.rand(1, 3, 8, 8), **given)


@pytest.mark.parametrize(
    "given", [torch.full((3,), 0.5), np.full(3, 0.5), [0.5] * 3, [torch.tensor(0.5)] * 3]
)
def test_mean_and_std_become_floats(given, without_type_checks):
    exhibit = Exhibit(_network(), torch.rand(1, 3, 8, 8), mean=given, std=given)
    assert exhibit.mean == exhibit.std == (0.5, 0.5, 0.5)
    json.dumps(build_scene(exhibit).header)


@pytest.mark.parametrize(
    ("name", "value"), [("mean", 0.5), ("mean", None), ("std", "1.0"), ("std", [[1.0] * 3])]
)
def test_what_is_no_list_of_numbers_is_refused(name, value, without_type_checks):
    given = {"mean": (0.0,) * 3, "std": (1.0,) * 3, name: value}
    with pytest.raises(
        ArgumentError, match=rf"{name} must be one finite number for each of 3 channels, but is "
    ):
        Exhibit(_network(), torch.rand(1, 3, 8, 8), **given)
    with pytest.raises(
        ArgumentError, match=rf"{name} must be one finite number for each of 3 channels, but is "
    ):
        view(_network(), torch.rand(1, 3, 8, 8), mean=given["mean"], std=given["std"])


@pytest.mark.parametrize(
    ("images", "found"),
    [
        (torch.rand(3, 8, 8), r"\(3, 8, 8\)"),
        (torch.rand(0, 3, 8, 8), r"\(0, 3, 8, 8\)"),
        ([[1.0]], "'list'"),
    ],
)
def test_images_of_another_shape_are_refused(images, found, without_type_checks):
    with pytest.raises(
        ShapeError,
        match=rf"images must be of shape \(images, channels, rows, cols\), .*but is {found}",
    ):
        Exhibit(_network(), images)


@pytest.mark.parametrize(
    "images", [torch.ones(1, 3, 8, 8, dtype=torch.uint8), torch.full((1, 3, 8, 8), math.nan)]
)
def test_images_are_finite_floating_point_numbers(images, without_type_checks):
    with pytest.raises(ArgumentError, match="images must be finite floating-point numbers"):
        Exhibit(_network(), images)


def test_a_network_is_a_module(without_type_checks):
    with pytest.raises(
        ArgumentError, match=r"network must be a network \(torch.nn.Module\), but is"
    ):
        Exhibit(lambda images: images, torch.rand(1, 3, 8, 8))


class _Aside(nn.Module):
    """Has a layer of attention, and does not use it."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = RelativeAttention2d(3, 5, 2, "quadratic")

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def test_a_network_whose_layers_do_not_run_is_refused():
    with pytest.raises(
        ArgumentError, match="none of the layers unused runs when the network sees an image"
    ):
        build_scene(Exhibit(_Aside(), torch.rand(1, 3, 8, 8)))


def test_images_hold_numbers():
    with pytest.raises(
        ArgumentError, match="images must be on a device that holds numbers, but is"
    ):
        Exhibit(_network(), torch.empty(1, 3, 8, 8, device="meta"))


@pytest.mark.parametrize(("channels", "runs"), [(1, True), (2, False), (3, True), (4, False)])
def test_a_network_runs_in_the_page_if_pictures_are_what_it_takes(channels, runs):
    numbers = (0.5,) * channels
    exhibit = Exhibit(_network(channels), torch.rand(1, channels, 8, 8), mean=numbers, std=numbers)
    assert (build_scene(exhibit).header["networks"][0]["program"] is not None) == runs


def test_what_a_picture_cuts_off_is_said():
    images = torch.tensor([0.0, 0.5, 1.0, 1.0]).expand(3, 3, 2, 4).clone()
    images[1, 0, 0, :3] = torch.tensor([-0.5, 1.5, 2.0])
    images[2, 0, 0, 0] = -1e-4  # less than a picture in bytes can show
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    prepared = (images - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    exhibit = Exhibit(_network(), prepared, mean=mean, std=std)
    first, second, third = exhibit.notes()
    assert first == third == ""
    assert second.startswith(
        "12.5% of this image's numbers lie outside 0 to 1 before normalisation (from -0.5 to 2)."
    )
    assert [image["note"] for image in build_scene(exhibit).header["images"]] == ["", second, ""]
    assert Exhibit(_network(), prepared).notes() == ["", "", ""]


def test_a_single_number_that_a_picture_cuts_off_is_not_none():
    images = torch.rand(1, 3, 64, 64)
    images[0, 0, 0, 0] = 2
    (note,) = Exhibit(_network(), images, mean=(0,) * 3, std=(1,) * 3).notes()
    assert note.startswith("0.00814% of this image's numbers lie outside 0 to 1")
