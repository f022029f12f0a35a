"""The demo's page: one HTML file with its pictures inside, made from the demo's record by `demo_page.html`."""

import base64
from importlib import resources
from pathlib import Path

from convattn.cli.demo_record import Demonstration
from convattn.files import write_atomically

__all__ = ["write_page"]


def write_page(shown: Demonstration, folder: Path) -> Path:
    """Writes `index.html`, with the pictures inside.

    Args:
        shown: What the demo showed.
        folder: Folder with the figures that it names.

    Returns:
        The page.
    """
    from jinja2 import Environment, StrictUndefined  # here, because `--help` does without

    pages = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    pages.filters["number"] = format
    pages.filters["embedded"] = lambda file: base64.b64encode((folder / file).read_bytes()).decode()
    template = (resources.files("convattn.cli") / "demo_page.html").read_text(encoding="utf-8")
    return write_atomically(folder / "index.html", pages.from_string(template).render(shown=shown).lstrip())
