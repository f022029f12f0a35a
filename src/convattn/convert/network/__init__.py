"""Whole networks: every convolution made attention, or every attention layer a convolution."""
