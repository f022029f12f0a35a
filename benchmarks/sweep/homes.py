"""The homes of the networks that are swept."""

from benchmarks.sweep import other_subjects, timm_subjects, torchvision_subjects
from benchmarks.sweep.subjects import Home

__all__ = ["HOMES"]

HOMES: dict[str, Home] = {
    home.name: home for home in (timm_subjects.HOME, torchvision_subjects.HOME, other_subjects.HOME)
}
"""Homes by name, in the order of the sweep."""
