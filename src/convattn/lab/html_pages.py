"""The report of heads as one HTML file, with its figures."""

import base64
from pathlib import Path

from convattn.errors import optional_module
from convattn.files import write_atomically
from convattn.heads.head_report import HeadReport
from convattn.heads.verdict import MEANINGS, count_words
from convattn.lab.report_figures import (
    distance_by_depth,
    head_grid,
    head_map,
    head_pictures,
)


def write_report(
    report: HeadReport, folder: Path, *, source: str, images: str, drawn: bool = False
) -> Path:
    """Writes report.json, the figures and the page into an existing folder, and returns the page, `index.html`.

    The page shows `source`, what the network was built from, `images`, the name of their folder, file or test set, and
    in its title whether the weights were drawn at random.
    """
    jinja2 = optional_module("jinja2", "jinja2", "train")
    report.save(folder / "report.json")
    head_map(folder / "head-map.png", report)
    distance_by_depth(folder / "distance.png", report)
    head_grid([folder / "heads.svg", folder / "heads.pdf"], report)

    def as_base64(content: bytes) -> str:
        return base64.b64encode(content).decode()

    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters["number"] = format
    pages.filters["base64"] = as_base64
    pages.filters["embedded"] = lambda file: as_base64((folder / file).read_bytes())
    page = pages.get_template("analyze_page.html").render(
        report=report,
        pictures=head_pictures,
        drawn=drawn,
        meanings=MEANINGS,
        words=count_words,
        name=Path(source.partition(":")[2] or source).resolve().name,
        source=source,
        images=images,
    )
    return write_atomically(folder / "index.html", page.lstrip())
