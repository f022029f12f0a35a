"""Attention maps of the layers of a network: of each image, and means over images."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.heads.analysis import ONLY, Images, as_input
from convattn.heads.head_report import call_name
from convattn.heads.head_sums import has_positions
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch


def attention_maps(
    model: nn.Module,
    images: Tensor | tuple[Any, ...] | Mapping[str, Any],
    *,
    layers: str | Sequence[str] | None = None,
) -> dict[str, Float[Tensor, "images heads *queries_then_keys"]]:
    """Reads where every head looks on each image, position by position of the layer's own grid.

    Prefix tokens and padding are left out, so that a query's weights sum to 1 less the share of these. Windows stand
    where they lie on the grid, and pairs that no window holds have 0. Weights of keys between positions, as where keys
    are reduced, count for the position above and to the left. `watch` gives all that is read, prefix tokens too.

    Args:
        model: The network.
        images: A batch of what it is called with, or as in `watch`.
        layers: Names or patterns of the layers, as in `analyze`; None for all that can be read.

    Returns:
        The weights of each layer by its name, on the CPU; layers that attend from class tokens alone are left out. A
        layer that runs again is there again, as "NAME (call 2)".

    Raises:
        ArgumentError: The images do not fit the network, or no layer has such a name.
        UnsupportedModelError: A layer cannot be read; it says which and why.

    Example:
        >>> import timm, torch
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=(48, 80), depth=1)
        >>> maps = attention_maps(vit, torch.randn(2, 3, 48, 80))["blocks.0.attn"]
        >>> maps.shape  # images, heads, rows and columns of the query, rows and columns of the key
        torch.Size([2, 3, 3, 5, 3, 5])
    """
    maps: dict[str, Tensor] = {}
    calls = Counter[str]()

    def keep(call: AttentionCall) -> None:
        name = call_name(call.name, calls)
        if has_positions(call.layout):
            maps[name] = call.maps().cpu()

    watch(model, images, keep, layers=layers)
    return maps


_AT_ONCE = 4
"""Images whose maps are held at a time."""


def mean_maps(
    model: nn.Module,
    images: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    *,
    layers: str | Sequence[str] | None = None,
) -> dict[str, Float[Tensor, "groups heads queries keys"]]:
    """Averages the attention of every head over images, pair by pair, for `replace_heads` with by="mean_map".

    Args:
        model: The network.
        images: A batch or a list of single ones, or a batch of each input by the name of the argument, as in `analyze`.
        layers: Names or patterns of the layers, as in `analyze`; None for all that can be read.

    Returns:
        The mean weights of each layer by its name, on the CPU. A layer that runs again is there again, as
        "NAME (call 2)".

    Raises:
        ArgumentError: There are no images, they differ in size or do not fit the network, or no layer has such a name.
        UnsupportedModelError: A layer cannot be read; it says which and why.

    Example:
        >>> import timm, torch
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1)
        >>> mean_maps(vit, torch.randn(4, 3, 48, 48))["blocks.0.attn"].shape
        torch.Size([1, 3, 10, 10])
    """
    inputs = Images(images)
    sums: dict[str, Tensor] = {}

    def add(calls: Counter[str], call: AttentionCall) -> None:
        name = call_name(call.name, calls)
        sums[name] = sums.get(name, 0) + call.weights.sum(0, dtype=torch.float64).cpu()

    for start in range(0, inputs.count, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, inputs.count))
        batch = as_input(inputs.batch(numbers), model)
        watch(model, batch.get(ONLY, batch), partial(add, Counter()), layers=layers)
    return {name: (total / inputs.count).float() for name, total in sums.items()}
