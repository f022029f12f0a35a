"""Tables as Markdown and as parquet."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from convattn.errors import optional_module
from convattn.files import new_file


def cell(value: object) -> str:
    """Writes a value as a cell of a table in Markdown: line breaks become spaces, and a vertical bar is escaped."""
    return " ".join(str(value).split()).replace("|", "\\|")


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Writes a table; special characters in a cell are escaped, line breaks become spaces.

    Example:
        >>> print(markdown_table(["key", "value"], [["choice", "a|b"]]))
        | key | value |
        | --- | --- |
        | choice | a\|b |
    """
    lines = [[cell(text) for text in row] for row in (heads, *rows)]
    lines.insert(1, ["---"] * len(heads))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_parquet(path: Path, rows: Iterable[Sequence[object]], columns: Mapping[str, str]) -> None:
    """Writes one row or more as a parquet file with checksums, whole or not at all; `columns` are dtypes by name."""
    pa = optional_module("pyarrow.parquet", "train")
    table = pa.table([*zip(*rows, strict=True)], schema=pa.schema(columns))
    with new_file(path) as file:
        pa.parquet.write_table(table, file, write_page_checksum=True)
