"""One layer: a convolution made attention, and attention made a convolution."""
