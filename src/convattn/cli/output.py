"""Prints what commands say: text, with verdicts coloured on a terminal, or a record as JSON."""

import sys

from convattn.records import Record

_VERDICTS = [
    r"(?<=: )(?P<green>exact|close)\b",
    r"(?<=: )(?P<yellow>different)\b",
    r"(?<=: )(?P<red>failed)\b",
    r"(?P<red>\b(NOT|FAILED|missing)\b)",
]


def print_text(text: str) -> None:
    """Prints text without markup; on a terminal, verdicts are coloured."""
    if not sys.stdout.isatty():
        print(text, flush=True)
        return
    from rich.console import Console
    from rich.highlighter import RegexHighlighter

    class Verdicts(RegexHighlighter):
        """Colours verdicts."""

        highlights = _VERDICTS

    Console(highlighter=Verdicts(), markup=False, emoji=False, soft_wrap=True).print(text)


def print_record(record: Record, summary: str, *, json: bool) -> None:
    """Prints a result as JSON, or its summary."""
    if json:
        sys.stdout.write(record.to_json())
        sys.stdout.flush()
    else:
        print_text(summary)
