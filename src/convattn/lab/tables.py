"""Tables as Markdown, as comma-separated values, and as parquet."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convattn.errors import optional_module
from convattn.files import write_atomically

_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet takes text that begins with one of these for a formula, which may run programs."""

_QUOTED = re.compile(r'[",\r\n]')


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


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    r"""Writes rows as comma-separated values.

    Numbers stay as they are, and None is empty. Text that a spreadsheet would take for a formula gets an apostrophe in
    front, which a spreadsheet does not show. Source: OWASP, CSV Injection.

    Example:
        >>> csv_text([["name", "mean"], ["=1+2", -0.5]])
        "name,mean\n'=1+2,-0.5\n"
    """
    return "".join(",".join(map(_cell, row)) + "\n" for row in rows)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    if isinstance(value, str) and value.startswith(_FORMULAS):
        text = f"'{value}"
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Writes rows as a parquet file with checksums, whole or not at all; `columns` are dtypes by name."""
    pa = optional_module("pyarrow.parquet", "pyarrow", "train")
    buffer = io.BytesIO()
    pa.parquet.write_table(
        pa.Table.from_pylist(list(rows), schema=pa.schema(columns)), buffer, write_page_checksum=True
    )
    write_atomically(path, buffer.getvalue())
