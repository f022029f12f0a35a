"""How help is laid out: paragraphs and two columns, wrapped to the width at hand, with headings bold on a terminal."""

import textwrap
from typing import Any

from cyclopts.help import HelpEntry, HelpPanel

_LONGEST_LINE = 100


class HelpText:
    """Lays out a page of help; cyclopts calls one method for each of its parts."""

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:  # noqa: ARG002 - cyclopts names them
        """Prints how the command is called."""
        if usage:
            console.print(_plain(usage), style="bold", highlight=False, markup=False, soft_wrap=True)

    def render_description(self, console: Any, options: Any, description: Any) -> None:  # noqa: ARG002
        """Prints what the command does, paragraph by paragraph."""
        paragraphs = (_wrap(paragraph, console.width) for paragraph in _plain(description).split("\n\n"))
        _print(console, "\n\n".join(paragraphs))

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:  # noqa: ARG002
        """Prints a list of commands or parameters: names on the left, meanings on the right."""
        if not panel.entries:
            return
        console.print()
        console.print(_plain(panel.title), style="bold", highlight=False, markup=False)
        names = [", ".join(entry.all_options) for entry in panel.entries]
        left = max(map(len, names)) + 4
        for name, entry in zip(names, panel.entries, strict=True):
            lines = _wrap(_meaning(entry), console.width - left)
            _print(console, textwrap.indent(lines, " " * left).replace(" " * left, f"  {name:<{left - 2}}", 1))


def _meaning(entry: HelpEntry) -> str:
    """Returns the meaning of a command or a parameter, and its default or that it is required."""
    note = "[required]" if entry.required else f"[default: {entry.default}]" if entry.default is not None else ""
    return f"{_plain(entry.description)} {note}"


def _plain(part: Any) -> str:
    """Returns the text of a part, which cyclopts may have wrapped."""
    text = getattr(part, "primary_renderable", part)
    return "" if text is None else getattr(text, "plain", str(text))


def _wrap(text: str, width: int) -> str:
    return textwrap.fill(" ".join(text.split()), max(min(width, _LONGEST_LINE), 20), break_on_hyphens=False)


def _print(console: Any, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
