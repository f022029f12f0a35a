"""A figure of images with what they show and what a network sees in them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from convattn.analysis.canvas import COLOURS, figure_files
from convattn.errors import ArgumentError

_COLUMNS = 10
_PANEL = (1.1, 1.55)
"""Width and height of an image with its words, in inches."""


@dataclass(frozen=True, eq=False)
class ClassifiedImages:
    """Images, and two names for each.

    Attributes:
        images: The images.
        shown: Name of the class that each image shows.
        seen: Name of the class that a network gives it.
    """

    images: UInt8[np.ndarray, "images rows cols 3"]
    shown: Sequence[str]
    seen: Sequence[str]


def classified_images(path: str | os.PathLike[str], classified: ClassifiedImages) -> Path:
    """Draws images, each with its class above it and the class that a network gives it below.

    Args:
        path: File to write; its ending is one of `FORMATS`.
        classified: What to draw, at least one image.

    Returns:
        The path.

    Raises:
        ArgumentError: There is no image, or not one of each name for every image, or the ending is another.
        MissingDependencyError: matplotlib is not installed.
    """
    count = len(classified.images)
    if not count == len(classified.shown) == len(classified.seen) > 0:
        numbers = f"{count} images, {len(classified.shown)} shown and {len(classified.seen)} seen"
        raise ArgumentError(f"classified must hold at least one image, and two names for each, but has {numbers}")
    across, down = min(count, _COLUMNS), -(-count // _COLUMNS)
    with figure_files([path], (_PANEL[0] * across, _PANEL[1] * down)) as figure:
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        for panel in panels:
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
        for panel, image, shown, seen in zip(
            panels, classified.images, classified.shown, classified.seen, strict=False
        ):
            panel.imshow(image, interpolation="nearest")
            panel.set_title(shown)
            right = seen == shown
            colour, weight = (COLOURS[2], "normal") if right else (COLOURS[1], "bold")
            panel.set_xlabel(f"{'✓' if right else '✗'} {seen}", color=colour, weight=weight)
    return Path(path)
