"""Comma-separated values that spreadsheets open as what they are."""

import re
from collections.abc import Iterable

_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Text that begins with one of these is taken for a formula, which may run programs and send what is in the sheet."""

_QUOTED = re.compile(r'[",\r\n]')


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    r"""Writes rows as comma-separated values.

    Numbers stay as they are, and None is empty. Text that a spreadsheet would take for a formula gets an apostrophe in
    front, which a spreadsheet does not show.

    Source: OWASP, CSV Injection.

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
