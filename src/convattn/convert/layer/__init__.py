"""Conversion of single layers, in both directions."""
