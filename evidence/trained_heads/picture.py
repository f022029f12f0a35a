"""The cross: four heads of each trained network on a photograph, beside the same heads of the network untrained.

Heads are those of the records. Draws docs/results/trained-cross.png:

    python -m evidence.trained_heads.picture --work WORK
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import optional_module
from convattn.heads.layout import AttentionCall, Layout
from convattn.heads.reading import watch
from convattn.heads.untrained import untrained
from convattn.lab.figures import figure_files
from evidence import packaged_weights
from evidence.photographs import IMAGENET, prepared
from evidence.results import PAGES, new_parser
from evidence.trained_heads.networks import CLIP_COLOURS
from evidence.trained_heads.page import cross, read_record

SIZE = 224
NETWORKS = {
    "vit-s": (packaged_weights.load_vit, IMAGENET),
    "clip": (packaged_weights.load_clip, CLIP_COLOURS),
    "swin": (packaged_weights.load_swin, IMAGENET),
}
"""How the networks are loaded that see pictures, and the colours that are taken out."""

Head = Mapping[str, Any]
"""A head of a record."""


@dataclass(frozen=True)
class Looks:
    """How much each patch of a picture looks at each key, in one head."""

    layout: Layout
    weights: Float[Tensor, "groups queries keys"]
    shift: tuple[int, ...]  # To the neighbour that the head looks at

    def of(self, patch: tuple[int, int]) -> tuple[np.ndarray, float]:
        """Returns the shares of the attention on patches, (rows, cols), and that of the neighbour; nan if unseen."""
        rows, cols = self.layout.grid
        row, col = patch
        group, query = (self.layout.queries == row * cols + col).nonzero()[0].tolist()
        places = self.layout.keys[group].round().long()
        on_patches = ~self.layout.key_prefix
        shares = torch.full((rows, cols), torch.nan)
        seen = self.weights[group, query, on_patches].float()
        shares[places[on_patches, 0], places[on_patches, 1]] = seen / seen.sum()
        return shares.nan_to_num().numpy(), float(shares[row + self.shift[0], col + self.shift[1]])


def look(
    network: nn.Module, picture: Float[Tensor, "3 rows cols"], heads: Sequence[Head]
) -> list[Looks]:
    """Reads where heads look on a picture."""
    found: dict[tuple[str, int], Looks] = {}

    def keep(call: AttentionCall) -> None:
        for head in heads:
            if head["name"] == call.name:
                weights = call.weights[0, :, head["head"] - 1].clone()
                shift = tuple(map(int, head["shift"]))
                found[call.name, head["head"]] = Looks(call.layout, weights, shift)

    watch(network, picture[None], keep)
    return [found[head["name"], head["head"]] for head in heads]


def nearest_patch(looks: Sequence[Looks]) -> tuple[int, int]:
    """Returns the patch nearest to the middle whose neighbours all heads can see, windows or not."""
    rows, cols = looks[0].layout.grid
    inside = [(row, col) for row in range(1, rows - 1) for col in range(1, cols - 1)]
    inside.sort(key=lambda patch: abs(patch[0] - rows // 2) + abs(patch[1] - cols // 2))
    return next(patch for patch in inside if not any(isnan(one.of(patch)[1]) for one in looks))


NEAR = 4
"""Patches that are shown to each side of the one that looks."""

HUES = {"left": "#56B4E9", "right": "#E69F00", "above": "#CC79A7", "below": "#4CD3A5"}
"""Colour of the head that looks to a side."""


def main() -> None:
    """Draws."""
    work = new_parser(__doc__, "--work").parse_args().work
    datasets = optional_module("sklearn.datasets", "train").datasets
    image = optional_module("PIL.Image", "pictures").Image
    photograph = image.fromarray(datasets.load_sample_image("flower.jpg"))
    records = {name: read_record(name) for name in NETWORKS}
    records = {name: record for name, record in records.items() if record is not None}
    across = 2 * len(records)
    with figure_files([PAGES / "trained-cross.png"], (2.1 * across, 2.95)) as figure:
        panels = iter(figure.subplots(1, across))
        for name, record in records.items():
            load, colours = NETWORKS[name]
            picture, shown = prepared(photograph, SIZE, colours)
            network = load(work)
            for one, state in ((network, "trained"), (untrained(network, 0).eval(), "untrained")):
                panel = next(panels)
                heads = cross(record)
                draw_cross(panel, shown, heads, look(one, picture, heads))
                panel.set_title(f"{record['title']}, {state}", fontsize=9)


def draw_cross(panel: Any, shown: Any, heads: Sequence[Head], looks: Sequence[Looks]) -> None:
    """Draws where heads look from one patch: a colour each, as opaque as the share of attention."""
    colours = optional_module("matplotlib.colors", "train").colors
    patches = optional_module("matplotlib.patches", "train").patches
    count = looks[0].layout.grid[0]
    pixels = SIZE // count
    grey = 0.5 * np.asarray(shown.convert("L"), dtype=float)[..., None] / 255
    drawn = np.repeat(grey, 3, axis=2)
    row, col = nearest_patch(looks)
    for number, (head, one) in enumerate(zip(heads, looks, strict=True)):
        weights, there = one.of((row, col))
        share = np.kron(weights, np.ones((pixels, pixels)))[..., None]
        hue = HUES[head["looks"]]
        drawn = (1 - share) * drawn + share * np.array(colours.to_rgb(hue))
        words = f"{head['layer']}.{head['head']}: {there:.0%} {head['looks']}"
        place = {"transform": panel.transAxes, "va": "top", "fontsize": 7.5}
        box = {"boxstyle": "square,pad=0.15", "facecolor": hue, "linewidth": 0}
        panel.text(
            0.01 + 0.51 * (number % 2), -0.05 - 0.13 * (number // 2), words, bbox=box, **place
        )
    panel.imshow(drawn)
    corner = (col * pixels - 0.5, row * pixels - 0.5)
    frame = patches.Rectangle(corner, pixels, pixels, fill=False, edgecolor="w", linewidth=1.5)
    panel.add_patch(frame)
    left, right = (col - NEAR) * pixels - 0.5, (col + NEAR + 1) * pixels - 0.5
    top, bottom = (row - NEAR) * pixels - 0.5, (row + NEAR + 1) * pixels - 0.5
    panel.set(xticks=[], yticks=[], xlim=(left, right), ylim=(bottom, top))
    panel.set_xlabel("\n\n")  # the room of the words


if __name__ == "__main__":
    main()
