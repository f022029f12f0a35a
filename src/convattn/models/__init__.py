"""Image classifiers: the paper's attention network, its convolutional control and ResNet-18."""

from convattn.models.attention_net import AttentionNet
from convattn.models.conv_net import ConvNet
from convattn.models.fetch import fetch
from convattn.models.flops import FlopCount
from convattn.models.pruning import degenerate_heads, prune_heads, reinitialise_heads
from convattn.models.resnet import ResNet, resnet18
from convattn.models.saved import NETWORKS, load_network

__all__ = [
    "NETWORKS",
    "AttentionNet",
    "ConvNet",
    "FlopCount",
    "ResNet",
    "degenerate_heads",
    "fetch",
    "load_network",
    "prune_heads",
    "reinitialise_heads",
    "resnet18",
]
