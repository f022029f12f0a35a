"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Writes a table; special characters in a cell are escaped, line breaks become spaces.

    Example:
        >>> print(markdown_table(["key", "value"], [["choice", "a|b"]]))
        | key | value |
        | --- | --- |
        | choice | a\|b |
    """
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (heads, *rows)]
    cells.insert(1, ["---"] * len(heads))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
