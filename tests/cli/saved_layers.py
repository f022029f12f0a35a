"""Layers on disk, for the commands to read."""

from pathlib import Path

import torch
from torch import nn

from convattn import save_network


def convolution(place: Path) -> Path:
    """Saves a small convolution."""
    torch.manual_seed(0)
    return save_network(nn.Conv2d(2, 3, kernel_size=(3, 5), padding=1), place / "convolution")
