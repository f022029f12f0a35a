"""Reads this library's own layers, which compute their weights themselves."""

import copy
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.convert.to_attention import ATTENTION_LAYERS
from convattn.functional import attend, pad_keys
from convattn.functional.rounding import LEAST_ROUNDINGS, rounded_differently, rounding_budget
from convattn.grid import Axis
from convattn.heads.kernels import Proof
from convattn.heads.layout import Layout, cells
from convattn.layers import RelativeAttention

OWN = ATTENTION_LAYERS
"""Classes that `read_own` reads."""

_ROUNDINGS = 8
"""Ways of rounding that a proof looks at where one is not enough."""


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

    Where that is not enough, each of the two is held against the definition with weights computed in float64, and
    rounding explains what happens if input and parameters are rounded another way: the layer computes its scores in
    other steps than the weights were computed in.
    """

    def computed(by: RelativeAttention, x: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
        keys, maps = pad_keys(x, by.geometry).to(dtype), by.values.maps().to(dtype)
        made = attend(weights.to(dtype), keys, maps, by.groups).mT
        return made if by.bias is None else made + by.bias.to(dtype)

    made, given = computed(layer, x, weights, torch.float64), y.flatten(2).mT.double()
    parts = (x, *(rounded_differently(x, seed) for seed in range(LEAST_ROUNDINGS - 1)))
    lows = [computed(layer, part, weights, y.dtype) for part in parts]
    proof = Proof((made - given).abs().max().item(), rounding_budget(made, lows))
    if proof.error <= proof.budget:
        return proof
    double = copy.deepcopy(layer).double()
    exact = computed(double, x.double(), _weights(double, x.double()), torch.float64)
    for seed in range(_ROUNDINGS):
        other, moved = copy.deepcopy(layer), rounded_differently(x, seed)
        for parameter in other.parameters():
            parameter.data = rounded_differently(parameter.data, seed)
        lows.append(computed(other, moved, _weights(other, moved), y.dtype))
    return Proof((torch.stack([made, given]) - exact).abs().max().item(), rounding_budget(exact, lows))
