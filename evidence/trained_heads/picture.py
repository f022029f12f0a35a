"""The cross: four heads of each trained network on a photograph, beside the same heads of the network untrained.

Heads are those of the records. Draws docs/results/trained-cross.png:

    python -m evidence.trained_heads.picture --work WORK
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
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


def main() -> None:
    """Draws."""
    work = new_parser(__doc__, "--work").parse_args().work
    datasets = optional_module("sklearn.datasets", "scikit-learn", "train").datasets
    image = optional_module("PIL.Image", "pillow", "pictures").Image
    photograph = image.fromarray(datasets.load_sample_image("flower.jpg"))
    records = {name: read_record(name) for name in NETWORKS}
    records = {name: record for name, record in records.items() if record is not None}
    with figure_files([PAGES / "trained-cross.png"], (12.6, 1.75 * len(records) + 0.55)) as figure:
        grid = figure.add_gridspec(
            len(records), 10, width_ratios=(1, 1, 1, 1, 1, 0.12, 1, 1, 1, 1), wspace=0, hspace=0
        )
        for row, (name, record) in enumerate(records.items()):
            _draw_row(figure, grid[row, :], name, record, photograph, work, first=row == 0)


def _draw_row(
    figure: Any,
    place: Any,
    name: str,
    record: Mapping[str, Any],
    photograph: Any,
    work: Path,
    *,
    first: bool,
) -> None:
    """Draws the heads of a network, trained and untrained."""
    load, colours = NETWORKS[name]
    picture, shown = prepared(photograph, SIZE, colours)
    heads = cross(record)
    grid = place.subgridspec(1, 10, width_ratios=(1, 1, 1, 1, 1, 0.12, 1, 1, 1, 1), wspace=0.04)
    network = load(work)
    panel = figure.add_subplot(grid[0])
    panel.imshow(shown)
    cells = _cells(look(network, picture, heads)[0])
    _outline(panel, cells)
    panel.set(xticks=[], yticks=[])
    panel.set_ylabel(record["title"], fontsize=9)
    if first:
        panel.set_title("one patch looks", fontsize=9)
    for start, one, words in ((1, network, "trained"), (6, untrained(network, 0), "untrained")):
        for column, (head, weights) in enumerate(
            zip(heads, look(one.eval(), picture, heads), strict=True)
        ):
            panel = figure.add_subplot(grid[start + column])
            pixels = SIZE // len(weights)
            bright = np.kron(weights / weights.max(), np.ones((pixels, pixels)))[..., None]
            panel.imshow((np.asarray(shown) * (0.2 + 0.8 * bright)).astype(np.uint8))
            _outline(panel, _cells(weights))
            panel.set(xticks=[], yticks=[])
            row, col = (int(step) for step in head["shift"])
            middle = len(weights) // 2
            share = weights[middle + row, middle + col] / weights.sum()
            panel.set_title(
                f"{head['layer']}.{head['head']} {words}\n{share:.0%} {head['looks']}", fontsize=7.5
            )


def _cells(weights: np.ndarray) -> tuple[int, int]:
    """Returns the patches along an axis, and the pixels of one."""
    return len(weights), SIZE // len(weights)


def _outline(panel: Any, cells: tuple[int, int]) -> None:
    """Frames the patch that looks."""
    patches = optional_module("matplotlib.patches", "matplotlib", "train").patches
    count, pixels = cells
    corner = (count // 2 * pixels - 0.5,) * 2
    frame = patches.Rectangle(corner, pixels, pixels, fill=False, edgecolor="w", linewidth=1.2)
    panel.add_patch(frame)


if __name__ == "__main__":
    main()
