"""Self-attention on grids as modules, with the arguments of `torch.nn.ConvNd`."""

from convattn.layers.content_scores import Content
from convattn.layers.frozen import FrozenAttention
from convattn.layers.gated import (
    GatedRelativeAttention,
    GatedRelativeAttention1d,
    GatedRelativeAttention2d,
    GatedRelativeAttention3d,
)
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
    "GatedRelativeAttention",
    "GatedRelativeAttention1d",
    "GatedRelativeAttention2d",
    "GatedRelativeAttention3d",
    "MergedValues",
    "NormalisedConv",
    "RelativeAttention",
    "RelativeAttention1d",
    "RelativeAttention2d",
    "RelativeAttention3d",
]
