"""The layer that the page computes against the library's layer: random layers and images, within float32's budget."""

import copy
from collections.abc import Sequence
from operator import call
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.viewer.layer_cases import random_layer
from tests.viewer.node import run_node
from torch import Tensor

from convattn.budget import assert_within_budget, roundings
from convattn.layers import RelativeAttention2d
from convattn.viewer import Exhibit, build_scene


@pytest.mark.parametrize(
    "seeds", [range(14), pytest.param(range(200), marks=pytest.mark.slow)], ids=["some", "200"]
)
def test_the_page_computes_what_the_layer_computes(seeds, tmp_path):
    cases = [random_layer(seed) for seed in seeds]
    compute_in_page(cases, tmp_path)
    for number, (layer, image) in enumerate(cases):
        assert_same(layer, image, tmp_path / f"{number}")


def test_a_head_beside_its_centre_is_seen(tmp_path):
    layer, image = random_layer(5)
    moved = copy.deepcopy(layer)
    with torch.no_grad():
        moved.encoding.centres[0, 0] += 0.01
    compute_in_page([(moved, image)], tmp_path)
    with pytest.raises(AssertionError, match=r"output: error .* is above the budget"):
        assert_same(layer, image, tmp_path / "0")


def test_another_border_is_seen(tmp_path):
    """One of zeros in place of the image's own edge."""
    shape = {"kernel_size": 3, "padding": 1}
    padded = RelativeAttention2d(
        2, 3, num_heads=4, encoding="quadratic", **shape, padding_mode="replicate"
    )
    zeros = RelativeAttention2d(2, 3, num_heads=4, encoding=padded.encoding, **shape)
    zeros.load_state_dict(padded.state_dict())
    image = torch.ones(1, 2, 7, 11)
    compute_in_page([(zeros, image)], tmp_path)
    with pytest.raises(AssertionError, match=r"output: error .* is above the budget"):
        assert_same(padded, image, tmp_path / "0")


def compute_in_page(cases: Sequence[tuple[RelativeAttention2d, Tensor]], folder: Path) -> None:
    """Computes layers in the page, each on an image."""
    for number, (layer, image) in enumerate(cases):
        scene = build_scene(Exhibit(layer, image))
        (folder / f"{number}.scene").write_bytes(scene.to_bytes())
        features = image[0].movedim(0, -1).contiguous()
        save_file({"features": features}, folder / f"{number}.features")
    run_node("attend.js", folder)


@torch.no_grad()
def assert_same(layer: RelativeAttention2d, image: Tensor, place: Path) -> None:
    """Compares what the page has computed of a layer with float64."""
    wide, by_definition = copy.deepcopy(layer).double(), copy.deepcopy(layer)
    wide.impl = by_definition.impl = "reference"
    exact = wide(image.double())
    lows = [*roundings(call, layer, image), *roundings(call, by_definition, image)]
    shape = exact.movedim(1, -1).shape
    for what in ("output", "direct"):
        computed = numbers(place, what).view(shape).movedim(-1, 1)
        assert_within_budget(computed, exact, lows, what)

    def row(layer: RelativeAttention2d) -> Tensor:
        attention = layer.attention(image.shape[2:])
        return attention[:, -1, attention.shape[2] // 2]

    exact = row(wide)
    computed = numbers(place, "row").view(exact.shape)
    assert_within_budget(computed, exact, roundings(row, layer), "row")


def numbers(place: Path, what: str) -> Tensor:
    return torch.from_numpy(np.fromfile(f"{place}.{what}", np.float32))
