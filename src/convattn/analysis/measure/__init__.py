"""Measuring heads: sums over images, taken layer by layer, from which every statistic follows."""
