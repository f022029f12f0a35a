"""Fits converted convolutions to the attention that they replace, by least squares."""
