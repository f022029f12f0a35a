"""How the heads of two networks, or of one on two sets of images, differ."""

import math
from dataclasses import dataclass

from convattn.records.head_report import Estimate
from convattn.records.record import Record
from convattn.records.words import counted


@dataclass(frozen=True)
class HeadDifference:
    """One number of one head that differs by more than chance."""

    layer: str  # Name of the layer in the first report
    head: int  # Number of the head, from 0; −1 for a number of the whole layer
    number: str  # Name of the number; of a shift with its axis, as in "shift[0]"
    first: Estimate  # In the first report
    second: Estimate  # In the second one
    errors: float  # Difference in units of its standard error, at least that of rounding; inf for shifts of hard heads


@dataclass(frozen=True)
class ReportComparison(Record):
    """Two reports beside each other; layers and heads are matched by their place.

    Attributes:
        first: Class of the first network.
        second: Class of the second one.
        layers: Number of layers compared.
        heads: Number of heads compared.
        convolutional: Number of convolutional heads in each.
        hard: Number of hard heads in each.
        mean_distance: Mean attention distance of the heads compared, in cells, in each.
        convolution_score: Mean R² of the layers' best convolutions in each.
        threshold: Standard errors from which a difference is told.
        differences: What differs by more, the largest first, and the shifts of hard heads that differ.
        not_covered: What this says nothing about.
    """

    first: str
    second: str
    layers: int
    heads: int
    convolutional: tuple[int, int]
    hard: tuple[int, int]
    mean_distance: tuple[float, float]
    convolution_score: tuple[float, float]
    threshold: float
    differences: tuple[HeadDifference, ...]
    not_covered: tuple[str, ...] = ()

    def summary(self) -> str:
        """Returns the comparison in a few lines of plain text, with the ten largest differences."""
        shifts = sum(math.isinf(item.errors) for item in self.differences)
        told = f"{len(self.differences) - shifts} of more than {self.threshold:g} standard errors"
        rows = {
            "convolutional heads": "{} and {}".format(*self.convolutional),
            "hard heads": "{} and {}".format(*self.hard),
            "mean distance": "{:.3g} and {:.3g} cells".format(*self.mean_distance),
            "convolution R²": "{:.3g} and {:.3g}, mean of the layers".format(*self.convolution_score),
            "differences": told + (f", {counted(shifts, 'shift')} of hard heads" if shifts else ""),
        }
        compared = f"{counted(self.heads, 'head')} of {counted(self.layers, 'layer')} compared"
        lines = [f"heads of {self.first} and {self.second}: {compared}"]
        lines += [f"  {name:<20} {value}" for name, value in rows.items()]
        for item in self.differences[:10]:
            head = "" if item.head < 0 else f" head {item.head + 1}"
            lines.append(f"  {item.layer}{head}: {item.number} {item.first} and {item.second}")
        lines += [f"  not covered          {item}" for item in self.not_covered]
        return "\n".join(lines)
