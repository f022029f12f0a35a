"""Pages of one HTML file: their templates, and the report of heads."""

import base64
from importlib import resources
from pathlib import Path
from typing import Any

from convattn.errors import optional_module
from convattn.files import write_atomically
from convattn.heads.head_report import HeadReport
from convattn.lab import report_figures as figures


def write_html(template: str, folder: Path, **shown: Any) -> Path:
    """Fills a template of this package with what is `shown`, by name, and returns the page: `index.html` in a folder.

    The folder must hold the pictures that the template embeds. Templates can import `page_parts.html`.
    """
    jinja2 = optional_module("jinja2", "jinja2", "train")
    loader = jinja2.FunctionLoader(
        lambda name: (resources.files("convattn.lab") / name).read_text(encoding="utf-8")
    )
    pages = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters["number"] = format
    pages.filters["base64"] = lambda content: base64.b64encode(content).decode()
    pages.filters["embedded"] = lambda file: base64.b64encode((folder / file).read_bytes()).decode()
    page = pages.get_template(template).render(**shown)
    return write_atomically(folder / "index.html", page.lstrip())


def write_report(report: HeadReport, folder: Path, *, source: str, images: str) -> Path:
    """Writes report.json, the figures and the page into an existing folder, and returns the page.

    The page shows `source`, what the network was built from, and `images`, the name of their folder, file or test set.
    """
    report.save(folder / "report.json")
    figures.head_map(folder / "head-map.png", report)
    figures.distance_by_depth(folder / "distance.png", report)
    name = Path(source.partition(":")[2] or source).resolve().name
    words = {"name": name, "source": source, "images": images}
    return write_html(
        "analyze_page.html", folder, report=report, picture=figures.head_picture, **words
    )
