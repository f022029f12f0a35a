"""Runs a model once and hands out the attention of each layer, with its layout, proved."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from convattn.adapters.attention.layout import AttentionCall
from convattn.adapters.attention.run import Run
from convattn.adapters.attention.state import as_it_was
from convattn.adapters.attention.survey import chosen_layers, require_watchable
from convattn.convert.network.running import read_arguments
from convattn.errors import ArgumentError, must_be_a


def watch(
    model: nn.Module,
    images: Tensor | tuple[Any, ...] | Mapping[str, Any],
    callback: Callable[[AttentionCall], None],
    *,
    layers: str | Sequence[str] | None = None,
    without: str | Sequence[str] | None = None,
) -> None:
    """Runs a model in evaluation mode and calls back for every attention layer, in the order in which they run.

    Kernels stay fused. The weights are computed beside them, and it is proved on the first image that weights × values
    is what the module itself computed. Afterwards, and also when something raises, the model is as it was: training
    flags, hooks, random numbers.

    Args:
        model: The network.
        images: What it is called with: a tensor of images or token ids, a tuple of arguments, or named arguments.
        callback: Called with an `AttentionCall`; its tensors are valid during the call: copy what you keep.
        layers: Names of the layers to read, or patterns as in `fnmatch`; None reads all that `attention_layers` does
            not refuse, and raises if another module attends.
        without: Names or patterns of layers whose weights are not computed; they run all the same.

    Raises:
        ArgumentError: The images do not fit the network, or no layer has such a name.
        UnsupportedModelError: A layer cannot be read; it says which and why.

    Example:
        >>> import torch
        >>> from convattn.layers import RelativeAttention2d
        >>> layer = RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic")
        >>> watch(layer, torch.zeros(2, 3, 4, 6), lambda call: print(tuple(call.weights.shape)))
        (2, 1, 9, 24, 24)
    """
    require_watchable(model)
    if not callable(callback):
        raise ArgumentError(must_be_a("callback", "a function of an AttentionCall", callback))
    wanted = chosen_layers(model, layers, without)
    given = read_arguments(model, images)
    with as_it_was(model):
        Run(model, wanted, callback, strict=layers is None)(given)
