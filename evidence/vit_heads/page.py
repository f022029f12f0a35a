"""What the page of a trained ViT's heads says of its record."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convattn.heads.head_report import SHUFFLED, UNTRAINED
from convattn.lab.tables import markdown_table

_BY_POSITION = ("convolution", "neighbour", "window", "row", "column", "half-plane")

Sizes = Sequence[Mapping[str, Any]]
"""The heads at each size of the pictures."""


def by_size(sizes: Sizes) -> str:
    """Counts the words at each size."""
    rows = []
    for one in sizes:
        cells = [f"{one['size']} ({one['grid'][0]} × {one['grid'][1]})", str(one["images"])]
        rows.append([*cells, one["words"], one["untrained"], one["shuffled"]])
    columns = ["pixels (patches)", "photographs", "heads", "untrained weights", "shuffled patches"]
    return markdown_table(columns, rows)


def by_position(sizes: Sizes) -> Iterator[list[Mapping[str, Any]]]:
    """Yields the heads that look by position at the first size, each at every size."""
    for heads in zip(*(one["heads"] for one in sizes), strict=True):
        if heads[0]["word"] in _BY_POSITION:
            yield list(heads)


def kept(sizes: Sizes) -> list[bool]:
    """Tells of each head that looks by position whether it looks at the same place at every size."""
    return [all(at["shift"] == heads[0]["shift"] for at in heads) for heads in by_position(sizes)]


def shares(sizes: Sizes) -> str:
    """Tabulates how much of their attention neighbours have at their place, at every size."""
    rows = []
    for heads in by_position(sizes):
        if heads[0]["word"] == "neighbour":
            numbers = [_number(at["hard_share"]) for at in heads]
            rows.append([_name(heads[0]), heads[0]["place"], *numbers])
    columns = ["neighbour", "looks", *(f"share at {one['size']}" for one in sizes)]
    return markdown_table(columns, rows)


def table(sizes: Sizes) -> str:
    """Tabulates the heads that look by position."""
    rows = []
    for heads in by_position(sizes):
        first = heads[0]
        cells = [_name(first), first["verdict"]]
        cells += [_number(first["position_score"]), _number(first["hard_share"])]
        for at in heads:
            row, col = at["shift"]
            cells.append(f"({row:g}, {col:g})")
        controls = [first[SHUFFLED], first[UNTRAINED]]
        cells += [f"{control['position_score'][0]:z.2f}" for control in controls]
        rows.append(cells)
    at_sizes = [f"δ at {one['size']}" for one in sizes]
    columns = ["head", "it is", "R²", "share", *at_sizes, "R², shuffled", "R², untrained"]
    return markdown_table(columns, rows)


def _name(head: Mapping[str, Any]) -> str:
    return f"{head['layer']}.{head['head']}"


def _number(pair: Sequence[float]) -> str:
    return f"{pair[0]:.2f} ± {pair[1]:.2f}"
