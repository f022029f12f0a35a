"""A network as it is shown: what is taken, and what is refused."""

import math

import pytest
import torch

from convattn import AttentionNet
from convattn.errors import ArgumentError
from convattn.viewer import Exhibit, build_scene


def _network(channels=3):
    return AttentionNet(width=8, depth=1, heads=4, ffn=8, in_channels=channels)


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_mean_and_std_are_finite(name, value):
    given = {"mean": (0.0,) * 3, "std": (1.0,) * 3, name: (value, 1.0, 1.0)}
    with pytest.raises(ArgumentError, match=rf"{name} must be one finite number for each of 3 channels"):
        Exhibit(_network(), torch.rand(1, 3, 8, 8), **given)


def test_images_hold_numbers():
    with pytest.raises(ArgumentError, match="images must be on a device that holds numbers, but is"):
        Exhibit(_network(), torch.empty(1, 3, 8, 8, device="meta"))


@pytest.mark.parametrize(("channels", "runs"), [(1, True), (2, False), (3, True), (4, False)])
def test_a_network_runs_in_the_page_if_pictures_are_what_it_takes(channels, runs):
    numbers = (0.5,) * channels
    exhibit = Exhibit(_network(channels), torch.rand(1, channels, 8, 8), mean=numbers, std=numbers)
    assert (build_scene(exhibit).header["networks"][0]["program"] is not None) == runs
