"""Small networks and images for the tests of this folder."""

import torch
from torch import Tensor, nn

from convattn.lab.speed_net import SpeedNet
from convattn.models import AttentionNet, ConvNet, ResNet

SMALL = {"width": 14, "depth": 2, "heads": 3, "ffn": 11, "image_size": 10, "num_classes": 5}
"""Sizes of an `AttentionNet`."""

SAVED = {
    "attention": lambda: AttentionNet(
        "learned_axial", width=10, depth=2, heads=3, ffn=7, image_size=10, num_classes=5
    ),
    "attention with content": lambda: AttentionNet(
        "quadratic", content=True, width=10, depth=1, heads=3, ffn=7, dropout=0.0
    ),
    "attention with heads of each block": lambda: AttentionNet(
        width=10, depth=2, heads=range(3, 5), ffn=7
    ),
    "attention on a grid": lambda: AttentionNet(
        "generalized_quadratic", width=10, depth=1, heads=9, ffn=7, centres="grid"
    ),
    "gated attention": lambda: AttentionNet(
        "learned_axial",
        content=True,
        gated=True,
        width=10,
        depth=2,
        heads=[3, 2],
        ffn=7,
        image_size=10,
    ),
    "conv": lambda: ConvNet(5, width=10, depth=2, ffn=7),
    "resnet": lambda: ResNet(1, num_classes=3),
    "narrow resnet": lambda: ResNet(1, num_classes=3, width=5),
    "speed net": lambda: SpeedNet(widths=(5, 7), num_classes=3, sharpness=2.0),
    "speed net with content": lambda: SpeedNet("content", widths=[5]),
    "speed net of fixed heads": lambda: SpeedNet("random-frozen", widths=[5]),
}


def small_images(channels: int = 3) -> Tensor:
    """Draws images of 10 x 10 pixels."""
    return torch.randn(7, channels, 10, 10, generator=torch.Generator().manual_seed(1))


def run(network: nn.Module, images: Tensor) -> Tensor:
    """Calls a network, for `references`."""
    return network(images)


def count_parameters(network: nn.Module) -> int:
    """Counts trainable numbers."""
    return sum(parameter.numel() for parameter in network.parameters())
