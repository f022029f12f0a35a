"""Fitting converted convolutions to the attention that they stand for, by least squares."""
