"""Image classifiers: the paper's attention network, its convolutional control and ResNet-18."""

from convattn.models.attention_net import AttentionNet
from convattn.models.conv_net import ConvNet
from convattn.models.flops import FlopCount
from convattn.models.resnet import ResNet, resnet18
from convattn.models.saved import NETWORKS, load_network

__all__ = ["NETWORKS", "AttentionNet", "ConvNet", "FlopCount", "ResNet", "load_network", "resnet18"]
