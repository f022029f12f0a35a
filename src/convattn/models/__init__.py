"""Image classifiers: the paper's attention network, its convolutional control, ResNet-18, and one that trains fast."""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from convattn.models.attention_net import AttentionNet, ConvNet
from convattn.models.classifier import FlopCount
from convattn.models.pretrained import pretrained_card, pretrained_names
from convattn.models.resnet import ResNet, resnet18
from convattn.models.speed_net import SpeedNet

if TYPE_CHECKING:
    from convattn.lab.pruning import degenerate_heads, prune_heads

__all__ = [
    "NETWORKS",
    "AttentionNet",
    "ConvNet",
    "FlopCount",
    "ResNet",
    "SpeedNet",
    "degenerate_heads",
    "pretrained_card",
    "pretrained_names",
    "prune_heads",
    "resnet18",
]

NETWORKS = MappingProxyType({kind.__name__: kind for kind in (AttentionNet, ConvNet, ResNet, SpeedNet)})
"""Every network that can be saved and loaded, by the name of its class."""

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name at all

    def __getattr__(name: str) -> object:
        """Imports what belongs to the laboratory when it is first used."""
        if name not in __all__:
            message = f"module 'convattn.models' has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module("convattn.lab.pruning"), name)
