"""Where cells of a layer lie on the image, in pixels; the centre of pixel (0, 0) is at (0, 0)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convattn.grid import Axis, Geometry


@dataclass(frozen=True)
class Place:
    """A lattice on the image: its cell (i, j) has its centre at first + step · (i, j)."""

    first: tuple[float, float]  # Centre of cell (0, 0)
    step: tuple[float, float]  # From one cell to the next

    @classmethod
    def pixels(cls) -> "Place":
        """Returns the lattice of the image's own pixels."""
        return cls((0.0, 0.0), (1.0, 1.0))

    @classmethod
    def covering(cls, image: Sequence[int], grid: Sequence[int]) -> "Place":
        """Returns the lattice whose cells divide the image evenly, as patches do."""
        step = tuple(size / cells for size, cells in zip(image, grid, strict=True))
        return cls(_pair((one - 1) / 2 for one in step), _pair(step))

    def among(self, first: Sequence[float], step: Sequence[float]) -> "Place":
        """Returns the lattice whose cell (i, j) is at first + step · (i, j) of this one's cells."""
        at = (a + b * c for a, b, c in zip(self.first, self.step, first, strict=True))
        return Place(_pair(at), _pair(b * c for b, c in zip(self.step, step, strict=True)))

    def scaled(self, factor: Sequence[float]) -> "Place":
        """Returns the lattice on the same image with `factor` times as many rows and columns of pixels."""
        first = ((a + 0.5) * c - 0.5 for a, c in zip(self.first, factor, strict=True))
        return Place(_pair(first), _pair(b * c for b, c in zip(self.step, factor, strict=True)))

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON types."""
        return {"first": list(self.first), "step": list(self.step)}


def key_place(features: Place, geometry: Geometry) -> Place:
    """Returns where the keys of a layer lie, padded ones included, given where its features lie."""
    spread = geometry.input_dilation
    before = [pair[0] for pair in geometry.padding]
    return features.among([-n / s for n, s in zip(before, spread, strict=True)], [1 / s for s in spread])


def query_place(keys: Place, axes: Sequence[Axis]) -> Place:
    """Returns where the queries of a layer lie, given where its keys lie."""
    return keys.among([axis.queries.start for axis in axes], [axis.queries.step for axis in axes])


def _pair(numbers: object) -> tuple[float, float]:
    first, second = numbers  # type: ignore[misc]
    return float(first), float(second)
