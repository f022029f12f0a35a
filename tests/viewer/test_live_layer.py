"""The layer that the page computes against the library's layer: random layers and images, within float32's budget."""

import copy
from operator import call
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.viewer.layer_cases import random_layer
from tests.viewer.node import run_node
from torch import Tensor

from convattn.budget import budget, roundings
from convattn.layers import RelativeAttention2d
from convattn.viewer import Exhibit, build_scene

QUICK, ALL = range(24), range(200)


class Compared(NamedTuple):
    """A result of the page, the same in float64, and what rounding explains."""

    made: Tensor
    exact: Tensor
    allowed: float

    @property
    def error(self) -> float:
        assert torch.isfinite(self.made).all()
        return (self.made.double() - self.exact).abs().max().item()


@pytest.mark.parametrize(
    "seeds", [QUICK, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "200"]
)
def test_the_page_computes_what_the_layer_computes(seeds, tmp_path):
    worst = 0.0
    for seed, found in zip(seeds, _computed_in_page(seeds, tmp_path), strict=True):
        for what, compared in found.items():
            assert compared.error <= compared.allowed, (
                f"layer {seed}, {what}: {compared.error} > {compared.allowed}"
            )
            worst = max(worst, compared.error / compared.allowed)
    print(f"{len(seeds)} layers: the largest error is {worst:.2f} of its budget")  # noqa: T201 - with pytest -s


def test_a_fault_is_seen(tmp_path):
    """A head that looks 0.01 cells beside its centre, and a border of zeros in place of the image's own edge."""
    moved = random_layer(5)
    assert moved[0].encoding.centres.shape[1] == 2
    expected = copy.deepcopy(moved[0])
    with torch.no_grad():
        moved[0].encoding.centres[0, 0] += 0.01
    found = _compare([(*moved, expected)], tmp_path)[0]["output"]
    assert found.error > 100 * found.allowed

    padded = RelativeAttention2d(
        2, 3, 4, "quadratic", kernel_size=3, padding=1, padding_mode="replicate"
    )
    zeros = RelativeAttention2d(2, 3, 4, padded.encoding, kernel_size=3, padding=1)
    zeros.load_state_dict(padded.state_dict())
    found = _compare([(zeros, torch.ones(1, 2, 7, 11), padded)], tmp_path)[0]["output"]
    assert found.error > 100 * found.allowed


def _computed_in_page(seeds, folder: Path) -> list[dict[str, Compared]]:
    return _compare([(*drawn, drawn[0]) for drawn in map(random_layer, seeds)], folder)


@torch.no_grad()
def _compare(
    cases: list[tuple[RelativeAttention2d, Tensor, RelativeAttention2d]], folder: Path
) -> list[dict[str, Compared]]:
    """Computes layers in the page; each with its image, and the layer that it is compared with."""
    for number, (layer, image, _) in enumerate(cases):
        build_scene(Exhibit(layer, image)).save(folder / f"{number}.scene")
        save_file({"features": image[0].movedim(0, -1).contiguous()}, folder / f"{number}.features")
    run_node("attend.js", folder)
    return [
        _compared(layer, image, folder / str(number))
        for number, (_, image, layer) in enumerate(cases)
    ]


def _compared(layer: RelativeAttention2d, image: Tensor, place: Path) -> dict[str, Compared]:
    wide, lows = copy.deepcopy(layer).double(), [layer, copy.deepcopy(layer)]
    wide.impl = lows[1].impl = "reference"
    exact = wide(image.double())
    allowed = budget(exact, [y for low in lows for y in roundings(call, low, image)])
    shape = exact.movedim(1, -1).shape[1:]
    outputs = {
        what: Compared(_numbers(place, what).view(shape).movedim(-1, 0), exact[0], allowed)
        for what in ("output", "direct")
    }
    weights = wide.attention(image.shape[2:])
    query = (slice(None), weights.shape[1] - 1, weights.shape[2] // 2)
    computed = roundings(lambda layer: layer.attention(image.shape[2:])[query], layer)
    row = Compared(
        _numbers(place, "row").view(computed[0].shape),
        weights[query],
        budget(weights[query], computed),
    )
    return {**outputs, "row": row}


def _numbers(place: Path, what: str) -> Tensor:
    return torch.from_numpy(np.fromfile(f"{place}.{what}", np.float32))
