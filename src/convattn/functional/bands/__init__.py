"""Long sequences whose queries look at few keys: these are found from scores, and most are computed by convolution."""

from convattn.functional.bands.attention import band_attention
from convattn.functional.bands.find import Bands, find_bands

__all__ = ["Bands", "band_attention", "find_bands"]
