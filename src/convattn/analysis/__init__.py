"""Analysis of heads and conversions: where heads attend, how large errors are, and figures and reports of both."""

from convattn.analysis.analyze import CONTROLS, analyze
from convattn.analysis.figures import Comparison, SharpnessCurve, convolution_and_attention, sharpness_regimes
from convattn.analysis.figures_heads import head_centres, head_moves
from convattn.analysis.figures_images import ClassifiedImages, classified_images
from convattn.analysis.heads import HeadSnapshot, read_heads
from convattn.analysis.report.comparison import compare_reports
from convattn.analysis.report.figures import comparison_figure
from convattn.analysis.report.table import read_table, write_table

__all__ = [
    "CONTROLS",
    "ClassifiedImages",
    "Comparison",
    "HeadSnapshot",
    "SharpnessCurve",
    "analyze",
    "classified_images",
    "compare_reports",
    "comparison_figure",
    "convolution_and_attention",
    "head_centres",
    "head_moves",
    "read_heads",
    "read_table",
    "sharpness_regimes",
    "write_table",
]
