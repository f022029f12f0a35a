"""Self-attention on grids as modules, with the arguments of `torch.nn.ConvNd`."""

from convattn.layers.content_scores import Content
from convattn.layers.frozen import FrozenAttention
from convattn.layers.normalised_conv import NormalisedConv
from convattn.layers.relative import (
    RelativeAttention,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)
from convattn.layers.values import FactoredValues, MergedValues

__all__ = [
    "Content",
    "FactoredValues",
    "FrozenAttention",
    "MergedValues",
    "NormalisedConv",
    "RelativeAttention",
    "RelativeAttention1d",
    "RelativeAttention2d",
    "RelativeAttention3d",
]
