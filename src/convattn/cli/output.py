"""What commands print: text with the verdicts coloured on a terminal, plain elsewhere, or a record as JSON."""

import sys

from convattn.records import Record

__all__ = ["print_record", "print_text"]

_VERDICTS = [r"(?P<green>\bpassed\b)", r"(?P<red>\bFAILED\b)", r"(?P<red>\bmissing\b)"]


def print_text(text: str) -> None:
    """Prints lines as they are; on a terminal verdicts are coloured.

    Args:
        text: Lines without markup.
    """
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
    """Prints a result as JSON, or in words.

    Args:
        record: The result.
        summary: The same in words.
        json: Whether JSON is asked for.
    """
    if json:
        sys.stdout.write(record.to_json())
        sys.stdout.flush()
    else:
        print_text(summary)
