"""Whether a layer's part of a report agrees with itself, before it is used: a report may have been edited."""

import math
from math import prod

from convattn.errors import ArgumentError, must_be
from convattn.records.head_report import HeadReport, HeadStatistics, LayerReport

_MOST = 1 + 2.0**-7
"""Most that shares may sum to: bfloat16 rounds shares of sum 1 to no more."""


def require_consistent_layer(report: HeadReport, layer: LayerReport) -> None:
    """Raises ArgumentError, which names layer and field, if grid, displacements or heads cannot be those of a layer."""
    if not layer.grid or min(layer.grid) < 1:
        raise _wrong(layer, "grid", "sizes of at least 1", layer.grid)
    if (layer.pattern == "sequence") > (len(layer.grid) == 1):
        raise _wrong(layer, "grid", "of one axis, as its pattern is a sequence", layer.grid)
    if layer.prefix < 0:
        raise _wrong(layer, "prefix", "at least 0", layer.prefix)
    numbers = [head.head for head in layer.heads]
    if numbers != list(range(len(numbers))):
        raise _wrong(layer, "heads", "numbered from 0 in their order", numbers)
    met = set()
    for shift in layer.displacements:
        if len(shift) != len(layer.grid):
            raise _wrong(layer, "displacements", f"along {len(layer.grid)} axes, as its grid", shift)
        if not all(abs(step) <= report.radius for step in shift):
            raise _wrong(layer, "displacements", f"within the report's radius of {report.radius}", shift)
        if shift in met:
            raise _wrong(layer, "displacements", "different from each other", shift)
        met.add(shift)


def require_consistent_head(layer: LayerReport, head: HeadStatistics) -> None:
    """Raises ArgumentError, which names layer, head and field, if a head's prefix tokens cannot be those of a layer."""
    shares, tokens = head.prefix_weights, layer.prefix + prod(layer.grid)
    if len(shares) != layer.prefix or not _are_weights(shares) or sum(shares) > _MOST:
        expectation = f"{layer.prefix} shares of sum at most 1, one for each prefix token"
        raise _wrong(layer, f"prefix_weights of head {head.head}", expectation, shares)
    field = f"prefix_maps of head {head.head}"
    if len(head.prefix_maps) != layer.prefix:
        raise _wrong(layer, field, f"{layer.prefix}, one for each prefix token", len(head.prefix_maps))
    for row in head.prefix_maps:
        if len(row) != tokens:
            raise _wrong(layer, field, f"of {tokens} weights, one for each token", len(row))
        if not _are_weights(row) or not 0 < sum(row) < math.inf:
            raise _wrong(layer, field, "weights of at least 0, not all of them 0", row)


def _are_weights(numbers: tuple[float, ...]) -> bool:
    return all(math.isfinite(number) and number >= 0 for number in numbers)


def _wrong(layer: LayerReport, field: str, expectation: str, value: object) -> ArgumentError:
    return ArgumentError("report must agree with itself, but " + must_be(f"{layer.name}: {field}", expectation, value))
