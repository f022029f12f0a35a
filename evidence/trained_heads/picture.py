"""The cross: four heads of each trained network on a photograph, beside the same heads of the network untrained.

Heads are those of the records. Draws docs/results/trained-cross.png:

    python -m evidence.trained_heads.picture --work WORK
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import optional_module
from convattn.heads.layout import AttentionCall
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


def look(
    network: nn.Module, picture: Float[Tensor, "3 rows cols"], heads: Sequence[Head]
) -> list[np.ndarray]:
    """Reads how much the middle patch looks at each patch, by head: (rows, cols)."""
    maps: dict[tuple[str, int], np.ndarray] = {}

    def keep(call: AttentionCall) -> None:
        numbers = [head["head"] - 1 for head in heads if head["name"] == call.name]
        if not numbers:
            return
        layout = call.layout
        rows, cols = layout.grid
        middle = rows // 2 * cols + cols // 2
        group, query = (layout.queries == middle).nonzero()[0].tolist()
        places = layout.keys[group].round().long()
        for number in numbers:
            weights = call.weights[0, group, number, query].clone()
            shown = torch.zeros(rows, cols)
            kept = ~layout.key_prefix
            shown[places[kept, 0], places[kept, 1]] = weights[kept].float()
            maps[call.name, number] = shown.numpy()

    watch(network, picture[None], keep)
    return [maps[head["name"], head["head"] - 1] for head in heads]


NEAR = 4
"""Patches that are shown to each side of the one that looks."""

HUES = {"left": "#56B4E9", "right": "#E69F00", "above": "#CC79A7", "below": "#4CD3A5"}
"""Colour of the head that looks to a side."""


def main() -> None:
    """Draws."""
    work = new_parser(__doc__, "--work").parse_args().work
    datasets = optional_module("sklearn.datasets", "scikit-learn", "train").datasets
    image = optional_module("PIL.Image", "pillow", "pictures").Image
    photograph = image.fromarray(datasets.load_sample_image("flower.jpg"))
    records = {name: read_record(name) for name in NETWORKS}
    records = {name: record for name, record in records.items() if record is not None}
    across = 2 * len(records)
    with figure_files([PAGES / "trained-cross.png"], (2.1 * across, 2.75)) as figure:
        panels = iter(figure.subplots(1, across))
        for name, record in records.items():
            load, colours = NETWORKS[name]
            picture, shown = prepared(photograph, SIZE, colours)
            network = load(work)
            for one, state in ((network, "trained"), (untrained(network, 0).eval(), "untrained")):
                panel = next(panels)
                heads = cross(record)
                _draw(panel, shown, heads, look(one, picture, heads))
                panel.set_title(f"{record['title']}, {state}", fontsize=9)


def _draw(panel: Any, shown: Any, heads: Sequence[Head], maps: Sequence[np.ndarray]) -> None:
    """Draws where heads look from the middle patch: a colour each, as opaque as the share of attention."""
    colours = optional_module("matplotlib.colors", "matplotlib", "train").colors
    patches = optional_module("matplotlib.patches", "matplotlib", "train").patches
    count = len(maps[0])
    pixels = SIZE // count
    grey = 0.5 * np.asarray(shown.convert("L"), dtype=float)[..., None] / 255
    drawn = np.repeat(grey, 3, axis=2)
    middle = count // 2
    for number, (head, weights) in enumerate(zip(heads, maps, strict=True)):
        share = np.kron(weights / weights.sum(), np.ones((pixels, pixels)))[..., None]
        hue = HUES[head["looks"]]
        drawn = (1 - share) * drawn + share * np.array(colours.to_rgb(hue))
        row, col = (int(step) for step in head["shift"])
        there = weights[middle + row, middle + col] / weights.sum()
        words = f"{head['layer']}.{head['head']}: {there:.0%} {head['looks']}"
        place = {"transform": panel.transAxes, "va": "top", "fontsize": 7.5}
        box = {"boxstyle": "square,pad=0.15", "facecolor": hue, "linewidth": 0}
        panel.text(
            0.01 + 0.51 * (number % 2), -0.05 - 0.13 * (number // 2), words, bbox=box, **place
        )
    panel.imshow(drawn)
    corner = (middle * pixels - 0.5,) * 2
    frame = patches.Rectangle(corner, pixels, pixels, fill=False, edgecolor="w", linewidth=1.5)
    panel.add_patch(frame)
    first, last = (middle - NEAR) * pixels - 0.5, (middle + NEAR + 1) * pixels - 0.5
    panel.set(xticks=[], yticks=[], xlim=(first, last), ylim=(last, first))


if __name__ == "__main__":
    main()
