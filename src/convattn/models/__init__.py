"""Image classifiers: the paper's attention network, its convolutional control, and ResNet-18."""

from convattn.models.attention_net import AttentionNet, ConvNet
from convattn.models.classifier import FlopCount
from convattn.models.resnet import ResNet, resnet18

__all__ = [
    "AttentionNet",
    "ConvNet",
    "FlopCount",
    "ResNet",
    "resnet18",
]
