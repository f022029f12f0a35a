"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Writes a table; special characters in a cell are escaped.

    Args:
        heads: Heading of each column.
        rows: Cells of each row; line breaks become spaces.

    Returns:
        The table, without a line feed at its end.

    Example:
        >>> print(markdown_table(["key", "value"], [["choice", "a|b"]]))
        | key | value |
        | --- | --- |
        | choice | a\|b |
    """
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (heads, *rows)]
    cells.insert(1, ["---"] * len(heads))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
