"""Attention maps of the layers of a network: of each image, and means over images."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ArgumentError, must_be_a
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
        The weights of each layer by its name, on the CPU; layers that attend from class tokens alone are left out.

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

    def keep(call: AttentionCall) -> None:
        if has_positions(call.layout):
            maps[call.name] = call.maps().cpu()

    watch(model, images, keep, layers=layers)
    return maps


_AT_ONCE = 4
"""Images whose maps are held at a time."""


def mean_maps(
    model: nn.Module,
    images: Tensor | Mapping[str, Tensor],
    *,
    layers: str | Sequence[str] | None = None,
) -> dict[str, Float[Tensor, "groups heads queries keys"]]:
    """Averages the attention of every head over images, pair by pair, for `replace_heads` with by="mean_map".

    Args:
        model: The network.
        images: A batch of what it is called with, or a batch of each input by the name of the argument.
        layers: Names or patterns of the layers, as in `analyze`; None for all that can be read.

    Returns:
        The mean weights of each layer by its name, on the CPU.

    Raises:
        ArgumentError: The images are no batch or do not fit the network, or no layer has such a name.
        UnsupportedModelError: A layer cannot be read; it says which and why.

    Example:
        >>> import timm, torch
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1)
        >>> mean_maps(vit, torch.randn(4, 3, 48, 48))["blocks.0.attn"].shape
        torch.Size([1, 3, 10, 10])
    """
    inputs = images if isinstance(images, Mapping) else {"": images}
    if not all(isinstance(batch, Tensor) and batch.ndim for batch in inputs.values()) or not inputs:
        expected = "a batch of images (Tensor), or a mapping from the name of each input to a batch"
        raise ArgumentError(must_be_a("images", expected, images))
    sums: dict[str, Tensor] = {}

    def add(call: AttentionCall) -> None:
        total = call.weights.sum(0, dtype=torch.float64).cpu()
        sums[call.name] = sums.get(call.name, 0) + total

    parts = [batch.split(_AT_ONCE) for batch in inputs.values()]
    for batches in zip(*parts, strict=True):
        batch = dict(zip(inputs, batches, strict=True))
        watch(model, batch.get("", batch), add, layers=layers)
    count = len(next(iter(inputs.values())))
    return {name: (total / count).float() for name, total in sums.items()}
