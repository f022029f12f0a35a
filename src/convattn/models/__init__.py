"""Image classifiers: the paper's attention network, its convolutional control, ResNet-18, and one that trains fast."""

from convattn.models.attention_net import AttentionNet, ConvNet
from convattn.models.hub_model import FlopCount, fetch, pretrained_card, pretrained_names
from convattn.models.pruning import degenerate_heads, prune_heads, reinitialise_heads
from convattn.models.resnet import ResNet, resnet18
from convattn.models.saved import NETWORKS, load_network
from convattn.models.speed_net import SpeedNet

__all__ = [
    "NETWORKS",
    "AttentionNet",
    "ConvNet",
    "FlopCount",
    "ResNet",
    "SpeedNet",
    "degenerate_heads",
    "fetch",
    "load_network",
    "pretrained_card",
    "pretrained_names",
    "prune_heads",
    "reinitialise_heads",
    "resnet18",
]
