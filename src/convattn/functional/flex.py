"""Attention with content scores by FlexAttention, which looks up the scores of displacements while it attends."""

import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.errors import ArgumentError, DeviceError
from convattn.functional.content import ContentMaps, PositionTables
from convattn.functional.reference import combine_heads
from convattn.functional.torch_modes import needs_own_operations, without_autocast
from convattn.grid import Axis

_Place: TypeAlias = Callable[[Tensor, Tensor], Tensor | int]

_NARROWEST = 16
"""Least width of queries, keys and values in FlexAttention's kernels; narrower ones are padded with zeros."""


def flex_attention(
    keys: Float[Tensor, "images channels *spatial"],
    axes: Sequence[Axis],
    content: ContentMaps,
    position: PositionTables,
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
) -> Float[Tensor, "images outputs *queries"]:
    """Computes softmax attention with `s = ((q + u)·k + q·Ŵr_δ)/√width + s_h(δ)` by torch's FlexAttention.

    The entries of tables for their displacement are added to each product of a query and a key: s_h(δ) of the head, and
    q·Ŵr_δ, computed beforehand for each query and displacement, axis by axis if the encoding allows. All heads mix the
    same pixels; their matrices follow.

    On CUDA it is compiled to one kernel, which makes no weights of all queries and keys, and has gradients; how wide
    queries and channels may be depends on the device's shared memory, and torch refuses what does not fit. On the CPU
    torch has no gradients of it, and here it runs uncompiled, with all weights in memory. In a graph that is
    compiled as a whole it is left to that compiler; torch's own (2.15) refuses it on the CPU.

    Neither its speed nor, on CUDA, its results have been measured so far.

    Source: Dai et al. 2019 (Transformer-XL), §3.3; Dong et al. 2024 (FlexAttention).

    Args:
        keys: Key images.
        axes: Queries and keys along each axis.
        content: Maps to queries and keys.
        position: Tables of displacements.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks, dividing channels and outputs.

    Returns:
        Output channels at each query, in the dtype of `keys`.

    Raises:
        DeviceError: The device is neither CUDA nor the CPU, or gradients are wanted on the CPU.
        ArgumentError: It was called inside a transform of torch.func, or with tangents.

    Example:
        >>> from torch import nn
        >>> from convattn.layers import RelativeAttention2d
        >>> layer = RelativeAttention2d(3, 5, 2, "quadratic", content=True, impl="flex")
        >>> with torch.no_grad():
        ...     layer(torch.zeros(1, 3, 4, 5)).shape
        torch.Size([1, 5, 4, 5])
    """
    if needs_own_operations(keys, maps, content.query):
        raise ArgumentError("impl='flex' has no derivatives by torch.func: use impl='content'")
    query, key = content.project(keys, axes, len(maps))
    wide = torch.promote_types(query.dtype, torch.float32)
    with without_autocast(keys.device):
        scale, bias, exact = query.shape[-1] ** -0.5, content.content_bias, query.to(wide)
        seen = [(exact * scale) @ table.mT for table in position.features]
        if bias is not None:
            query = (exact + bias.to(wide)[:, None]).to(query.dtype)
        values = keys.flatten(2).mT[:, None].to(query.dtype)
        _require_device([query, key, values, *seen, *position.scores])
        mixed = _attend(query, key, values, scale, _lookup(axes, position.scores, seen))
    return combine_heads(mixed.mT, maps, groups).unflatten(-1, [len(axis.queries) for axis in axes])


def _attend(
    query: Float[Tensor, "images heads queries width"],
    key: Float[Tensor, "images heads keys width"],
    values: Float[Tensor, "images 1 keys channels"],
    scale: float,
    score_mod: Callable[..., Tensor],
) -> Float[Tensor, "images heads queries channels"]:
    """Calls the kernel with the same values for all heads, padded to the least width."""
    if not len(query):
        return values.new_zeros(*query.shape[:3], values.shape[-1])
    query, key, filled = (
        functional.pad(x, (0, max(0, _NARROWEST - x.shape[-1]))) for x in (query, key, values)
    )
    mixed = _kernel(query, key, filled.expand(-1, query.shape[1], -1, -1), score_mod, scale)
    return mixed[..., : values.shape[-1]]


def _lookup(
    axes: Sequence[Axis],
    scores: Sequence[Float[Tensor, "heads *_"]],
    seen: Sequence[Float[Tensor, "images heads queries _"]],
) -> Callable[..., Tensor]:
    """Returns the function that adds the tables' entries to the product of a query and a key."""
    places = [_along(axes, number) for number in range(len(axes))]
    if len(scores) < len(axes):
        places = [_flat(places, [axis.highest - axis.lowest + 1 for axis in axes])]
    by_head = list(zip([table.flatten(1) for table in scores], places, strict=True))
    by_query = list(zip(seen, places, strict=bool(seen)))
    return lambda score, image, head, query, key: (
        score
        + sum(table[head, place(query, key)] for table, place in by_head)
        + sum(table[image, head, query, place(query, key)] for table, place in by_query)
    )


# What FlexAttention traces are lambdas: a run-time type check wraps every def, and it cannot see through the wrapper.


def _along(axes: Sequence[Axis], number: int) -> _Place:
    """Returns the place of a displacement in an axis's table, as a function of flat numbers of query and key."""
    axis, after = axes[number], axes[number + 1 :]
    count, step, keys = len(axis.queries), axis.queries.step, axis.keys
    queries_after, keys_after = (
        prod([len(other.queries) for other in after]),
        prod([other.keys for other in after]),
    )
    return lambda query, key: (
        key // keys_after % keys + step * (count - 1 - query // queries_after % count)
    )


def _flat(places: Sequence[_Place], counts: Sequence[int]) -> _Place:
    """Returns the place of a displacement in a flattened table of all displacements."""
    strides = [prod(counts[number + 1 :]) for number in range(len(counts))]
    pairs = list(zip(places, strides, strict=True))
    return lambda query, key: sum(place(query, key) * stride for place, stride in pairs)


def _kernel(
    query: Tensor, key: Tensor, values: Tensor, score_mod: Callable[..., Tensor], scale: float
) -> Tensor:
    """Calls FlexAttention: compiled on CUDA, but not on the CPU or inside a graph that is being compiled."""
    from torch.nn.attention.flex_attention import flex_attention as kernel

    if torch.compiler.is_compiling():
        return kernel(query, key, values, score_mod=score_mod, scale=scale)
    if query.device.type == "cuda":
        return torch.compile(kernel, fullgraph=True)(
            query, key, values, score_mod=score_mod, scale=scale
        )
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="flex_attention called without torch.compile", category=UserWarning
        )
        return kernel(query, key, values, score_mod=score_mod, scale=scale)


def _require_device(tensors: Sequence[Tensor]) -> None:
    """Refuses devices that FlexAttention has no kernel for, and gradients on the CPU."""
    device = tensors[0].device.type
    if device not in ("cpu", "cuda"):
        raise DeviceError(
            f"FlexAttention runs on CUDA, and on the CPU without gradients, but the images are on {device}"
        )
    if (
        device == "cpu"
        and torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in tensors)
    ):
        raise DeviceError(
            "FlexAttention has no gradients on the CPU: call the layer under torch.no_grad(), or set impl to 'content'"
        )
