"""Analysis of heads and conversions: where heads attend, how large errors are, and figures of both."""

from convattn.analysis.figures import Comparison, SharpnessCurve, convolution_and_attention, sharpness_regimes
from convattn.analysis.figures_heads import head_centres, head_moves
from convattn.analysis.figures_images import ClassifiedImages, classified_images
from convattn.analysis.heads import HeadSnapshot, read_heads

__all__ = [
    "ClassifiedImages",
    "Comparison",
    "HeadSnapshot",
    "SharpnessCurve",
    "classified_images",
    "convolution_and_attention",
    "head_centres",
    "head_moves",
    "read_heads",
    "sharpness_regimes",
]
