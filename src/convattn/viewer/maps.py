"""Attention that depends on the image: rows of weights in bytes, read image by image."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from convattn.adapters.attention import AttentionCall, attention_layers, watch
from convattn.functional import attention_weights, pad_keys
from convattn.layers import RelativeAttention

one_run = threading.RLock()
"""Held while a network runs with hooks: a network that two threads ran at once would mix up what they read."""

_LEVELS = 255
BOTH, CONTENT = "both", "content"
"""Parts of a layer's attention that have maps."""


class Rows(NamedTuple):
    """Rows of weights in bytes: weight = low + level / 255 · scale."""

    levels: UInt8[Tensor, "groups heads queries keys"]
    scales: Float[Tensor, "groups heads queries"]
    lows: Float[Tensor, "groups heads queries"]  # at most 0

    @property
    def bytes(self) -> int:
        """Size of levels and scales."""
        return self.levels.nbytes + self.scales.nbytes


class ReadMaps(NamedTuple):
    """The attention of one layer on one image, for the length of a callback."""

    name: str  # Name of the layer; "(call 2)" is added where it runs again
    call: AttentionCall  # What was read
    parts: Mapping[str, Float[Tensor, "groups heads queries keys"]]  # Weights by part: "both", and "content" if known


def encode_rows(weights: Float[Tensor, "*rows keys"]) -> Rows:
    """Encodes rows of weights; the error of a weight is at most 1/510 of the row's range. NaN counts as 0."""
    weights = torch.nan_to_num(weights.float())
    lows = weights.amin(-1).clamp(max=0)
    scales = weights.amax(-1) - lows
    unit = torch.where(scales > 0, scales, 1)[..., None]
    levels = ((weights - lows[..., None]) / unit * _LEVELS).round().to(torch.uint8)
    return Rows(levels, scales, lows)


def read_maps(
    network: nn.Module,
    image: Float[Tensor, "1 *sizes"],
    callback: Callable[[ReadMaps], None],
    *,
    layers: Sequence[str] | None = None,
) -> None:
    """Runs a network on one image and hands out the attention of each layer that can be read and depends on it.

    Layers of this library that attend by displacement alone have no maps: those of a convolution at 224 × 224 pixels
    would fill the memory.

    Args:
        network: The network.
        image: A batch of one prepared image.
        callback: Called for each layer in the order in which they run.
        layers: Names of the layers; None reads all, and raises if another module attends.
    """
    inputs: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()

    def read(call: AttentionCall) -> None:
        layer = network.get_submodule(call.name)
        parts = {BOTH: call.weights[0]}
        if isinstance(layer, RelativeAttention) and layer.content is not None:
            parts[CONTENT] = _content_weights(layer, inputs.pop(call.name))
        calls[call.name] += 1
        callback(ReadMaps(numbered(call.name, calls[call.name]), call, parts))

    positional = [layer.name for layer in attention_layers(network) if is_positional(network.get_submodule(layer.name))]
    with one_run, ExitStack() as hooks:
        for name, module in network.named_modules():
            if isinstance(module, RelativeAttention) and module.content is not None:
                hooks.callback(module.register_forward_pre_hook(_noting(inputs, name), with_kwargs=True).remove)
        watch(network, image, read, layers=layers, without=positional or None)


def is_positional(module: nn.Module) -> bool:
    """Tells whether a layer attends by displacement alone, so that it needs no maps."""
    return isinstance(module, RelativeAttention) and module.content is None


def numbered(name: str, call: int) -> str:
    """Returns the name of a layer's call."""
    return name if call == 1 else f"{name} (call {call})"


def _noting(inputs: dict[str, Tensor], name: str) -> Callable[..., None]:
    def hook(layer: RelativeAttention, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        inputs[name] = layer.batch_of(*given, **named)

    return hook


def _content_weights(layer: RelativeAttention, x: Tensor) -> Float[Tensor, "groups heads queries keys"]:
    """Computes the attention of the content scores alone, on one image."""
    assert layer.content is not None
    scores = layer.content(pad_keys(x, layer.geometry), layer.geometry.axes(x.shape[2:]), layer.encoding)
    return attention_weights(scores)
