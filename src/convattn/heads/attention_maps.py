"""Attention weights of the heads of a trained network: without images, on one, or averaged over many."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Float64
from torch import Tensor, nn

from convattn.errors import ArgumentError
from convattn.layers import RelativeAttention

_IMAGES_AT_ONCE = 10


def position_attention(
    network: nn.Module, spatial: tuple[int, int], queries: Sequence[tuple[int, int]]
) -> list[Float64[np.ndarray, "queries _ key_rows key_cols"]]:
    """Returns, for each layer, attention that depends on no image: weights over the keys, (queries, heads, rows, cols).

    `spatial` is the size of the layers' feature maps, `queries` are the row and column of each query pixel. A network
    without attention layers, or with content, raises ArgumentError.
    """
    with torch.inference_mode():
        return [_at_queries(layer.attention(spatial)[None], queries).numpy() for layer in _layers(network)]


def mean_attention(
    network: nn.Module, images: Float[Tensor, "images channels rows cols"], queries: Sequence[tuple[int, int]]
) -> list[Float64[np.ndarray, "queries _ key_rows key_cols"]]:
    """Returns, for each layer, attention averaged over normalised images: mean weights, (queries, heads, rows, cols).

    `queries` are the row and column of each query pixel in the layers' feature maps. The network must be in evaluation
    mode; one without attention layers raises ArgumentError.
    """
    layers = _layers(network)
    sums: list[Any] = [0.0] * len(layers)
    with torch.inference_mode():
        for batch in images.split(_IMAGES_AT_ONCE):
            with _inputs_of(layers) as inputs:
                network(batch)
            for number, (layer, features) in enumerate(zip(layers, inputs, strict=True)):
                weights = layer.attention(features) if layer.content else layer.attention(features.shape[2:])[None]
                sums[number] += _at_queries(weights, queries) * (len(batch) / len(weights))
    return [(total / len(images)).numpy() for total in sums]


def _layers(network: nn.Module) -> list[RelativeAttention]:
    layers = [module for module in network.modules() if isinstance(module, RelativeAttention)]
    if not layers:
        raise ArgumentError(f"network must have attention layers, but {type(network).__name__} has none")
    return layers


def _at_queries(
    weights: Float[Tensor, "images heads query_rows query_cols rows cols"], queries: Sequence[tuple[int, int]]
) -> Float64[Tensor, "queries heads rows cols"]:
    """Picks query pixels and sums over images."""
    rows, cols = (list(index) for index in zip(*queries, strict=True))
    chosen = weights[:, :, rows, cols].double()
    return reduce(chosen, "images heads queries rows cols -> queries heads rows cols", "sum")


@contextmanager
def _inputs_of(layers: Sequence[RelativeAttention]) -> Iterator[list[Tensor]]:
    """Collects the inputs of each layer, in the order of the calls."""
    inputs: list[Tensor] = []

    def note(layer: RelativeAttention, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        inputs.append(layer.batch_of(*given, **named))

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()
