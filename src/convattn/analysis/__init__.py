"""Analysis of heads and conversions: where heads attend, how large errors are, and figures of both."""

from convattn.analysis.figures import Comparison, SharpnessCurve, convolution_and_attention, sharpness_regimes
from convattn.analysis.figures_heads import head_centres
from convattn.analysis.heads import HeadSnapshot, read_heads

__all__ = [
    "Comparison",
    "HeadSnapshot",
    "SharpnessCurve",
    "convolution_and_attention",
    "head_centres",
    "read_heads",
    "sharpness_regimes",
]
