"""Tables as Markdown and as parquet."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convattn.errors import optional_module
from convattn.files import write_atomically


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


def write_parquet(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]
) -> None:
    """Writes rows as a parquet file with checksums, whole or not at all; `columns` are dtypes by name."""
    pa = optional_module("pyarrow.parquet", "pyarrow", "train")
    buffer = io.BytesIO()
    pa.parquet.write_table(
        pa.Table.from_pylist(list(rows), schema=pa.schema(columns)),
        buffer,
        write_page_checksum=True,
    )
    write_atomically(path, buffer.getvalue())
