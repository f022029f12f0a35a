"""Reads this library's own layers, which compute their weights themselves."""

import copy
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.adapters.attention.kernels import Proof
from convattn.adapters.attention.layout import Layout, cells
from convattn.convert.classes import ATTENTION_LAYERS
from convattn.functional import attend, pad_keys
from convattn.functional.rounding import rounded_differently, rounding_budget
from convattn.grid import Axis
from convattn.layers import RelativeAttention

OWN = ATTENTION_LAYERS
"""Classes that `read_own` reads."""


class OwnAttention(NamedTuple):
    """What was read of a layer."""

    layout: Layout
    weights: Float[Tensor, "images groups heads queries keys"]
    proof: Proof


def own_layout(axes: list[Axis]) -> Layout:
    """Makes the layout of a layer; keys are the pixels of the padded image, seen in steps of the queries."""
    grid = tuple(len(axis.queries) for axis in axes)
    start = torch.tensor([axis.queries.start for axis in axes])
    step = torch.tensor([axis.queries.step for axis in axes])
    keys = (cells(tuple(axis.keys for axis in axes)) - start) / step
    return Layout(
        pattern="sequence" if len(grid) == 1 else "global",
        grid=grid,
        queries=torch.arange(torch.Size(grid).numel())[None],
        keys=keys[None],
        key_prefix=torch.zeros(len(keys), dtype=torch.bool),
        allowed=None,
        source="the layer's own grid",
    )


def read_own(layer: RelativeAttention, x: Tensor, y: Tensor) -> OwnAttention:
    """Reads the weights of a layer for its input x, and proves on the first image that they make its output y."""
    axes = list(layer.geometry.axes(x.shape[2:]))
    weights = _weights(layer, x)
    return OwnAttention(own_layout(axes), weights[:, None], _proof(layer, x[:1], y[:1], weights[:1]))


def _weights(layer: RelativeAttention, x: Tensor) -> Float[Tensor, "images heads queries keys"]:
    """Computes the weights of images; all have the same without content."""
    dims = x.ndim - 2
    weights = layer.attention(x if layer.content is not None else x.shape[2:])
    weights = weights.flatten(-dims).flatten(-1 - dims, -2)
    return weights if weights.ndim == 4 else weights.expand(len(x), *weights.shape)


def _proof(layer: RelativeAttention, x: Tensor, y: Tensor, weights: Tensor) -> Proof:
    """Takes the definition with the weights, in float64, against the layer's output on one of its paths.

    Where that is not enough, rounding explains what the rounding of the weights does, too, which the layer computes in
    its own way.
    """

    def computed(dtype: torch.dtype, x: Tensor, weights: Tensor) -> Tensor:
        keys, maps = pad_keys(x, layer.geometry).to(dtype), layer.values.maps().to(dtype)
        made = attend(weights.to(dtype), keys, maps, layer.groups).mT
        return made if layer.bias is None else made + layer.bias.to(dtype)

    made, lows = (
        computed(torch.float64, x, weights),
        [computed(y.dtype, part, weights) for part in (x, rounded_differently(x, 0))],
    )
    error = (made - y.flatten(2).mT.double()).abs().max().item()
    proof = Proof(error, rounding_budget(made, lows))
    if proof.error <= proof.budget:
        return proof
    exact = computed(torch.float64, x, _weights(copy.deepcopy(layer).double(), x.double()))
    return Proof(error, rounding_budget(made, [*lows, exact]))
