"""What `convattn analyze` writes: numbers, figures, and the page `index.html` with the figures inside."""

from pathlib import Path

from convattn.cli.page import write_html
from convattn.records.head_report import HeadReport

__all__ = ["FILES", "write_report"]

FILES = (
    "report.json",
    "report.parquet",
    "head-map.png",
    "distance.png",
    "convolution.png",
    "shifts.png",
    "kernels.png",
    "index.html",
)
"""Names of the files that `write_report` writes."""


def write_report(report: HeadReport, folder: Path, *, source: str, images: str) -> Path:
    """Writes report.json, report.parquet, the figures and the page.

    Args:
        report: The report.
        folder: Existing folder.
        source: What the network was built from, as the command line names it.
        images: Where the images are from: the name of a folder, of a file, or of a test set.

    Returns:
        The page.
    """
    from convattn.analysis import write_table
    from convattn.analysis.report import figures

    report.save(folder / "report.json")
    write_table(report, folder / "report.parquet")
    figures.head_map(folder / "head-map.png", report)
    figures.distance_by_depth(folder / "distance.png", report)
    figures.convolution_by_depth(folder / "convolution.png", report)
    figures.shift_scatter(folder / "shifts.png", report)
    figures.kernel_gallery(folder / "kernels.png", report)
    return write_html("analyze_page.html", folder, report=report, source=source, images=images)
