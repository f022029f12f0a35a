"""The sweep's record: a line of JSON for each start of the sweep, and one for each family."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convattn.files import write_atomically


def read(record: Path) -> list[dict[str, Any]]:
    """Reads a record; a last line that was not written to its end is taken off the file.

    Args:
        record: The file; it may be missing.

    Returns:
        Its lines.
    """
    if not record.exists():
        return []
    text = record.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        write_atomically(record, whole)
    return [json.loads(line) for line in whole.splitlines()]


def families(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keeps the lines of families.

    Args:
        lines: All lines.

    Returns:
        Those that are not of a start.
    """
    return [line for line in lines if "family" in line]


def append(record: Path, line: dict[str, Any]) -> None:
    """Adds a line, on the disk before the next network is begun.

    Args:
        record: The file.
        line: What to add.
    """
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
