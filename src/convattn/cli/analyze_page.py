"""What `convattn analyze` writes: numbers, figures, and the page `index.html` with the figures inside."""

import base64
from importlib import resources
from pathlib import Path

from convattn.files import write_atomically
from convattn.records.head_report import HeadReport

__all__ = ["write_report"]


def write_report(report: HeadReport, folder: Path, *, source: str, images: str) -> Path:
    """Writes report.json, report.parquet, the figures and the page.

    Args:
        report: The report.
        folder: Existing folder.
        source: What the network was built from, as the command line names it.
        images: Name of the folder or file of the images.

    Returns:
        The page.
    """
    from jinja2 import Environment, StrictUndefined  # here, because `--help` does without

    from convattn.analysis import write_table
    from convattn.analysis.report import figures

    report.save(folder / "report.json")
    write_table(report, folder / "report.parquet")
    figures.head_map(folder / "head-map.png", report)
    figures.distance_by_depth(folder / "distance.png", report)
    figures.convolution_by_depth(folder / "convolution.png", report)
    figures.shift_scatter(folder / "shifts.png", report)
    figures.kernel_gallery(folder / "kernels.png", report)
    pages = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    pages.filters["number"] = format
    pages.filters["embedded"] = lambda file: base64.b64encode((folder / file).read_bytes()).decode()
    template = (resources.files("convattn.cli") / "analyze_page.html").read_text(encoding="utf-8")
    page = pages.from_string(template).render(report=report, source=source, images=images)
    return write_atomically(folder / "index.html", page.lstrip())
