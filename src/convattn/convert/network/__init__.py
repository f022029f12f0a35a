"""Conversion of whole networks, in both directions."""
