"""HTML pages of the commands: one file each, with its pictures inside."""

import base64
from importlib import resources
from pathlib import Path
from typing import Any

from convattn.files import write_atomically

__all__ = ["write_html"]


def write_html(template: str, folder: Path, **shown: Any) -> Path:
    """Writes `index.html`.

    Args:
        template: File of this room; it can import `page_parts.html`.
        folder: Existing folder, with the pictures that the template embeds.
        **shown: What the template shows, by name.

    Returns:
        The page.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # here, because `--help` does without

    loader = FunctionLoader(lambda name: (resources.files("convattn.cli") / name).read_text(encoding="utf-8"))
    pages = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    pages.filters["number"] = format
    pages.filters["embedded"] = lambda file: base64.b64encode((folder / file).read_bytes()).decode()
    page = pages.get_template(template).render(**shown)
    return write_atomically(folder / "index.html", page.lstrip())
