"""Draws docs/heads.svg, the README's picture: python scripts/heads_picture.py, with the extra `train`.

Every square is one head: the attention that the pixel in the middle gives to those around it, as a layer computes it.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from convattn import RelativeAttention2d, Shift
from convattn.lab.figures import COLOURS, figure_files

PICTURE = Path(__file__).parents[1] / "docs" / "heads.svg"
SIZE = 9
TITLES = ("nine taps of a 3 × 3 convolution", "= nine hard heads", "sharpness α = 5", "sharpness α = 0.5")
SHARPNESS = (None, 5.0, 0.5)
GAP = 1.5


def attention(sharpness: float | None) -> torch.Tensor:
    """Returns the attention of the middle pixel, (heads, rows, cols); hard heads where the sharpness is None."""
    encoding = Shift(9, 2)
    layer = RelativeAttention2d(1, 1, 9, encoding if sharpness is None else encoding.soften(sharpness))
    return layer.attention((SIZE, SIZE))[:, SIZE // 2, SIZE // 2].detach()


def draw_heads(panel: Any, maps: torch.Tensor) -> None:
    """Draws nine maps of attention side by side, three in a row, with a ring around the pixel that attends."""
    step = SIZE + GAP
    for head, image in enumerate(maps):
        row, col = divmod(head, 3)
        left, top = col * step, row * step
        place = (left, left + SIZE, top + SIZE, top)
        panel.imshow(image.sqrt().numpy(), cmap="Blues", vmin=0, vmax=1, extent=place, interpolation="nearest")
        panel.plot(left + SIZE / 2, top + SIZE / 2, "o", color=COLOURS[1], markersize=3, fillstyle="none")
    finish(panel)


def draw_taps(panel: Any) -> None:
    """Draws the kernel, each tap with its name."""
    step = SIZE + GAP
    for tap in range(9):
        row, col = divmod(tap, 3)
        middle = (col * step + SIZE / 2, row * step + SIZE / 2)
        panel.text(*middle, f"$W_{tap + 1}$", ha="center", va="center", fontsize=13)
        left, top = col * step - GAP / 2, row * step - GAP / 2
        panel.plot(
            [left, left + step, left + step, left, left],
            [top, top, top + step, top + step, top],
            color=COLOURS[-1],
            linewidth=0.8,
        )
    finish(panel)


def finish(panel: Any) -> None:
    """Gives a panel the size that all have, and no axes."""
    end = 3 * SIZE + 2 * GAP
    panel.set(xlim=(-GAP, end + GAP), ylim=(end + GAP, -GAP), aspect="equal")
    panel.axis("off")


def draw(*paths: Path) -> None:
    """Writes the picture, in the form that the ending of each path names."""
    with figure_files(paths, (11, 3.0)) as figure:
        panels = figure.subplots(1, 4)
        for panel, title in zip(panels, TITLES, strict=True):
            panel.set_title(title)
        draw_taps(panels[0])
        for panel, sharpness in zip(panels[1:], SHARPNESS, strict=True):
            draw_heads(panel, attention(sharpness))


if __name__ == "__main__":
    draw(*([Path(path) for path in sys.argv[1:]] or [PICTURE]))
