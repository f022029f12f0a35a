"""A small network, faults that a conversion can make in it, and copies that compute the same."""

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from convattn import network_to_attention


class Block(nn.Module):
    """A convolution beside the identity."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.norm, self.act = (
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )

    def forward(self, x):
        return self.act(self.norm(self.conv(x)) + x)


class Classifier(nn.Module):
    """Convolutions, one over a channel each, then attention of pixels."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 11, 3, padding=1, bias=False), nn.BatchNorm2d(11), nn.GELU()
        )
        self.blocks = nn.Sequential(Block(11), Block(11))
        self.each = nn.Conv2d(11, 11, (3, 5), padding=(1, 2), groups=11)
        self.norm, self.qkv, self.mix = nn.LayerNorm(11), nn.Linear(11, 33), nn.Linear(11, 11)
        self.head = nn.Linear(11, 7)

    def forward(self, x):
        x = self.each(self.blocks(self.stem(x))).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.head((x + self.mix((q @ k.transpose(1, 2) / 11**0.5).softmax(-1) @ v)).mean(1))


def classifier():
    """A network whose normalisation does something, and images for it."""
    torch.manual_seed(1)
    network = Classifier().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias)
    return network, torch.randn(9, 3, 13, 17)


def change_weight(network, by=1e-3):
    """Changes one tap of an output, for all channels: a single one may be zero on all images."""
    network.blocks[1].conv.weight.data[3, :, 1, 2] += by


def swap_axes(network):
    network.blocks[0].conv.weight.data = network.blocks[0].conv.weight.data.mT.contiguous()


def pad_otherwise(network):
    network.stem[0] = nn.Conv2d(3, 11, 3, padding=1, bias=False, padding_mode="replicate")
    network.stem[0].weight = classifier()[0].stem[0].weight


def drop_bias(network):
    network.each.bias = None


def halve(network):
    network.qkv.weight.data = network.qkv.weight.data.half().float()


def normalise_otherwise(network):
    network.norm.eps = 1e-3


FAULTS = {
    "a weight by 1e-3": (change_weight, "blocks.1.conv"),
    "a weight by 1e-4": (lambda network: change_weight(network, 1e-4), "blocks.1.conv"),
    "a weight by 1e-5": (lambda network: change_weight(network, 1e-5), "blocks.1.conv"),
    "swapped axes": (swap_axes, "blocks.0.conv"),
    "wrong padding": (pad_otherwise, "stem.0"),
    "dropped bias": (drop_bias, "each"),
    "half precision": (halve, "qkv"),
    "another epsilon": (normalise_otherwise, "norm"),
}
"""What is done to a network, and the layer that it is done to."""


def fold(network):
    """Merges every batch normalisation into the convolution before it."""
    network.stem[0], network.stem[1] = (
        fuse_conv_bn_eval(network.stem[0], network.stem[1]),
        nn.Identity(),
    )
    for block in network.blocks:
        block.conv, block.norm = fuse_conv_bn_eval(block.conv, block.norm), nn.Identity()
    return network


RIGHT = {
    "a copy": lambda network: network,
    "folded": fold,
    "channels last": lambda network: network.to(memory_format=torch.channels_last),
    "double": lambda network: network.double(),
    "attention": lambda network: network_to_attention(network, images=torch.zeros(1, 3, 13, 17))[0],
    "separable attention": lambda network: network_to_attention(
        network, impl="separable", images=torch.zeros(1, 3, 13, 17)
    )[0],
    "exported": lambda network: torch.export.export(network, (torch.zeros(9, 3, 13, 17),)).module(),
    "a function": lambda network: lambda x: network(torch.from_numpy(x)).detach().numpy(),
}
"""What computes the same as a network, made from a copy."""


def damaged(network, fault):
    """A copy with a fault."""
    other = copy.deepcopy(network)
    fault(other)
    return other


class Finds(nn.Module):
    """Gives scores, and boxes of what is found: nothing, above a score of a million."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        scores = self.conv(x).mean((2, 3))
        return {"boxes": scores[scores[:, 0] > 1e6], "none": scores[:, :0], "scores": scores}
