"""Where the neighbours among the heads of a trained vision transformer look, on a photograph that scikit-learn ships.

The network is that of `evidence.vit_heads`. Draws docs/results/vit-photograph.png:

    python -m evidence.vit_heads.on_photograph --work work
"""

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convattn.errors import optional_module
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch
from convattn.lab.figures import figure_files
from evidence.packaged_weights import load_vit
from evidence.photographs import prepared
from evidence.results import PAGES, new_parser, record_of
from evidence.vit_heads.__main__ import PATCH

SIZE = 224
QUERY = (8, 8)
"""Row and column of the patch that looks: the middle one."""


def neighbours() -> list[dict[str, Any]]:
    """Lists the heads of the record that are neighbours."""
    content = json.loads(record_of(__file__).read_text(encoding="utf-8"))
    return [head for head in content["sizes"][0]["heads"] if head["word"] == "neighbour"]


def maps(picture: Tensor, network: torch.nn.Module) -> list[np.ndarray]:
    """Reads how much the query looks at each patch, by layer: (heads, rows, cols)."""
    across = SIZE // PATCH
    token = 1 + QUERY[0] * across + QUERY[1]
    read: list[np.ndarray] = []

    def keep(call: AttentionCall) -> None:
        weights = call.weights[0, 0, :, token, 1:]
        read.append(weights.unflatten(-1, (across, across)).numpy().copy())

    watch(network, picture[None], keep)
    return read


def main() -> None:
    """Draws."""
    work = new_parser(__doc__, "--work").parse_args().work
    datasets = optional_module("sklearn.datasets", "scikit-learn", "train").datasets
    image = optional_module("PIL.Image", "pillow", "pictures").Image
    picture = image.fromarray(datasets.load_sample_image("flower.jpg"))
    tensor, shown = prepared(picture, SIZE)
    by_layer = maps(tensor, load_vit(work))
    heads = neighbours()
    with figure_files([PAGES / "vit-photograph.png"], (2.1 * (len(heads) + 1), 2.65)) as figure:
        first, *panels = figure.subplots(1, len(heads) + 1)
        first.imshow(shown)
        _outline(first)
        first.set_title("one patch looks", fontsize=9)
        for panel, head in zip(panels, heads, strict=True):
            weights = by_layer[head["layer"] - 1][head["head"] - 1]
            bright = np.kron(weights / weights.max(), np.ones((PATCH, PATCH)))[..., None]
            panel.imshow((np.asarray(shown) * (0.25 + 0.75 * bright)).astype(np.uint8))
            _outline(panel)
            row, col = head["shift"]
            share = weights[QUERY[0] + round(row), QUERY[1] + round(col)]
            title = f"head {head['layer']}.{head['head']}: {head['place']}\n{share:.0%} of it there"
            panel.set_title(title, fontsize=9)
        for panel in (first, *panels):
            panel.set(xticks=[], yticks=[])


def _outline(panel: Any) -> None:
    """Frames the patch that looks."""
    patches = optional_module("matplotlib.patches", "matplotlib", "train").patches
    corner = (QUERY[1] * PATCH - 0.5, QUERY[0] * PATCH - 0.5)
    frame = patches.Rectangle(corner, PATCH, PATCH, fill=False, edgecolor="w", linewidth=1.2)
    panel.add_patch(frame)


if __name__ == "__main__":
    main()
