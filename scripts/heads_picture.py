"""Draws docs/heads.svg, the README's picture: python scripts/heads_picture.py, with the extra `train`.

From left to right: a 3 × 3 kernel, each tap in its own colour; nine attention heads that compute the same, each with
all its attention on the pixel of its tap; and soft heads, moved and widened as an illustration of learning.
Every square shows the attention that the pixel in the middle gives to those around it, as a layer computes it.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import LinearSegmentedColormap

from convattn import RelativeAttention2d, Shift
from convattn.lab.figures import figure_files

PICTURE = Path(__file__).parents[1] / "docs" / "heads.svg"
SIZE = 9
GAP = 1.5
END = 3 * SIZE + 2 * GAP
TITLES = (
    "a 3 × 3 convolution",
    "nine attention heads: the same outputs",
    "softened: they can move and learn",
)
COLOURS = (
    "#1b6ca8",
    "#2a9d8f",
    "#6a994e",
    "#b08900",
    "#d1495b",
    "#e76f51",
    "#8f2d56",
    "#5b5f97",
    "#34699a",
)
CARD, INK, LINE = "#f6f8fa", "#24292f", "#d0d7de"
MOVES = (
    (-0.5, -0.9),
    (-1.2, 0.3),
    (-0.3, 0.8),
    (0.4, -1.1),
    (0.0, 0.0),
    (-0.7, 0.9),
    (1.0, -0.4),
    (0.9, 0.6),
    (0.2, 1.2),
)
WIDTHS = (0.7, 0.25, 1.2, 0.4, 3.0, 0.3, 0.5, 0.18, 0.8)
"""How far each head of the last panel is from its tap, in pixels, and its sharpness: an illustration, not a result."""


def attention(sharpness: float | None) -> torch.Tensor:
    """Returns the attention of the middle pixel, (heads, rows, cols), by hard or by moved soft heads."""
    encoding = Shift(9, 2)
    layer = RelativeAttention2d(
        1, 1, 9, encoding if sharpness is None else encoding.soften(sharpness)
    )
    if sharpness is not None:
        with torch.no_grad():
            layer.encoding.centres += torch.tensor(MOVES)
        layer.encoding.sharpness = sharpness * torch.tensor(WIDTHS)
    return layer.attention((SIZE, SIZE))[:, SIZE // 2, SIZE // 2].detach()


def draw_heads(panel: Any, maps: torch.Tensor) -> None:
    """Draws nine maps of attention, three in a row, with a ring around the pixel that attends."""
    for head, image in enumerate(maps):
        row, col = divmod(head, 3)
        left, top = col * (SIZE + GAP), row * (SIZE + GAP)
        shades = LinearSegmentedColormap.from_list("head", ["#ffffff", COLOURS[head]])
        shown = (image / image.max()).sqrt().numpy()
        panel.imshow(
            shown, cmap=shades, vmin=0, vmax=1, extent=(left, left + SIZE, top + SIZE, top)
        )
        frame(panel, left, top, SIZE)
        middle = (left + SIZE / 2, top + SIZE / 2)
        panel.plot(*middle, "o", color=INK, markersize=5, fillstyle="none", markeredgewidth=1.1)
    finish(panel)


def draw_taps(panel: Any) -> None:
    """Draws the kernel: nine taps around the pixel whose output they make."""
    side = 8.0
    start = (END - 3 * side) / 2
    for tap, colour in enumerate(COLOURS):
        row, col = divmod(tap, 3)
        left, top = start + col * side, start + row * side
        panel.fill(
            [left, left + side, left + side, left], [top, top, top + side, top + side], color=colour
        )
        frame(panel, left, top, side)
    panel.plot(
        END / 2, END / 2, "o", color="white", markersize=13, fillstyle="none", markeredgewidth=2
    )
    finish(panel)


def frame(panel: Any, left: float, top: float, side: float) -> None:
    """Draws the border of a square."""
    cols, rows = (
        [left, left + side, left + side, left, left],
        [top, top, top + side, top + side, top],
    )
    panel.plot(cols, rows, color=LINE, linewidth=0.9)


def finish(panel: Any) -> None:
    """Gives a panel the size that all have, and no axes."""
    panel.set(xlim=(-GAP, END + GAP), ylim=(END + GAP, -GAP), aspect="equal")
    panel.axis("off")


def draw(*paths: Path) -> None:
    """Writes the picture, in the form that the ending of each path names."""
    with figure_files(paths, (12, 4.2)) as figure:
        figure.set_layout_engine("none")
        figure.set_facecolor(CARD)
        panels = [figure.add_axes((left, 0.03, 0.29, 0.84)) for left in (0.015, 0.355, 0.695)]
        for panel, title in zip(panels, TITLES, strict=True):
            panel.set_title(title, color=INK, fontsize=13)
        draw_taps(panels[0])
        draw_heads(panels[1], attention(None))
        draw_heads(panels[2], attention(1.0))
        for place, sign in ((0.33, "="), (0.67, "→")):
            figure.text(place, 0.45, sign, fontsize=30, color=INK, ha="center", va="center")


if __name__ == "__main__":
    draw(*([Path(path) for path in sys.argv[1:]] or [PICTURE]))
