"""Scores that are any function of the displacement, by fast Fourier transforms: O(N log N) instead of O(N²)."""

from convattn.functional.fourier.attention import Filters, fourier_attention, fourier_filters

__all__ = ["Filters", "fourier_attention", "fourier_filters"]
