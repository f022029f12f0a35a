"""Image classifiers: the paper's attention network, its convolutional control, ResNet-18, and one that trains fast."""

from types import MappingProxyType

from convattn.models.attention_net import AttentionNet, ConvNet
from convattn.models.classifier import FlopCount
from convattn.models.pretrained import pretrained_card, pretrained_names
from convattn.models.resnet import ResNet, resnet18
from convattn.models.speed_net import SpeedNet

__all__ = [
    "NETWORKS",
    "AttentionNet",
    "ConvNet",
    "FlopCount",
    "ResNet",
    "SpeedNet",
    "pretrained_card",
    "pretrained_names",
    "resnet18",
]

NETWORKS = MappingProxyType(
    {kind.__name__: kind for kind in (AttentionNet, ConvNet, ResNet, SpeedNet)}
)
"""Every network that can be saved and loaded, by the name of its class."""
