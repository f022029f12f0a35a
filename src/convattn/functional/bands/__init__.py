"""Long sequences, of which each query looks at a few keys: found from the scores, and attended to as a convolution."""

from convattn.functional.bands.attention import band_attention
from convattn.functional.bands.find import Bands, find_bands

__all__ = ["Bands", "band_attention", "find_bands"]
