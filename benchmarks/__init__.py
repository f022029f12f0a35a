"""Measurements of the library: speed and memory against peers, sweeps over networks, and studies; not in the wheel."""
