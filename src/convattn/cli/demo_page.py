"""The demo's page: one HTML file with its pictures inside, made from the demo's record by `demo_page.html`."""

from pathlib import Path

from convattn.cli.demo_record import Demonstration
from convattn.cli.page import write_html

__all__ = ["write_page"]


def write_page(shown: Demonstration, folder: Path) -> Path:
    """Writes `index.html`, with the pictures inside.

    Args:
        shown: What the demo showed.
        folder: Folder with the figures that it names.

    Returns:
        The page.
    """
    return write_html("demo_page.html", folder, shown=shown)
