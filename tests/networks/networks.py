"""Networks to save: of other libraries, of this one, and of a user."""

import torch
from torch import nn

from convattn import network_to_attention
from convattn.models import AttentionNet, ConvNet, ResNet
from convattn.networks import create_network


class Tied(nn.Module):
    """One convolution in two places, two that share a weight, a view of a weight, and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.again = self.first
        self.left, self.right = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.right.weight = self.left.weight
        self.head = nn.Linear(3, 4)
        self.part = nn.Parameter(torch.randn(5, 4)[1:3])
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 3.0]), persistent=False)

    def forward(self, x):
        x = self.right(self.left(self.again(self.first(x)))) * self.scale[:, None, None]
        return self.head(x.mean((2, 3))) @ self.part.T


def images(*sizes):
    return torch.randn(2, *(sizes or (3, 32, 32)), generator=torch.Generator().manual_seed(1))


def converted(network, x, **options):
    """Converts a network; a parameter of it does not learn."""
    network = network.eval()
    next(network.parameters()).requires_grad_(False)
    return network_to_attention(network, images=x, **options)


def of(source, **options):
    return lambda: (create_network(source, options), source, options)


NAMED = {
    "timm, no options": of("timm:resnet10t"),
    "timm, padded by size": of("timm:tf_mobilenetv3_small_minimal_100", num_classes=3),
    "torchvision": of("torchvision:squeezenet1_1", num_classes=3),
    "own resnet": lambda: (ResNet(1, num_classes=3, width=8), None, None),
    "own convnet": lambda: (ConvNet(3, width=8, depth=2, ffn=8), None, None),
}
"""Networks that say, or are told, what builds them."""

OWN_ATTENTION = {
    "attention": lambda: AttentionNet(width=8, depth=2, heads=9, ffn=8, centres="grid"),
}
