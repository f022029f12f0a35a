"""Attention by its definition at a few queries: what every contender is checked against, also on large images."""

from collections.abc import Sequence

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from convattn.functional import pad_keys
from convattn.grid import Axis
from convattn.layers import RelativeAttention


def attend_at(
    layer: RelativeAttention,
    x: Float[Tensor, "batch channels *spatial"],
    queries: Int[Tensor, " queries"],
) -> Float[Tensor, "batch outputs queries"]:
    """Computes an attention layer at some of its queries: y[q] = b + Σ_h Σ_k softmax_k(s_h(k − q)) W_h x[k].

    Scores come from the encoding at each displacement, not from a table; with content the weights are the layer's own.

    Args:
        layer: A layer without groups or dropout; its path does not matter.
        x: Images, in the dtype of the layer.
        queries: Which queries, counted in row-major order.

    Returns:
        Output channels at those queries, in the dtype of x.
    """
    axes, keys = layer.geometry.axes(x.shape[2:]), pad_keys(x, layer.geometry)
    if layer.content is None:
        displacement = _displacements(axes, queries, torch.promote_types(x.dtype, torch.float32))
        weights = layer.encoding(displacement).softmax(dim=-1)[None]
    else:
        dims = len(axes)
        whole = layer.attention(x)
        weights = whole.flatten(2, 1 + dims).flatten(3)[:, :, queries]
    pixels = rearrange(keys, "batch channels ... -> batch channels (...)")
    mixed = einsum(
        weights.to(x.dtype).expand(len(x), -1, -1, -1),
        pixels,
        "batch heads queries keys, batch channels keys -> batch heads channels queries",
    )
    y = einsum(
        mixed,
        layer.values.maps(),
        "batch heads channels queries, heads outputs channels -> batch outputs queries",
    )
    return y if layer.bias is None else y + layer.bias[:, None]


def _displacements(
    axes: Sequence[Axis], queries: Int[Tensor, " queries"], dtype: torch.dtype
) -> Float[Tensor, "queries keys dims"]:
    """Returns key − query in pixels, for the chosen queries and all keys."""
    device = queries.device
    keys = torch.meshgrid(*(torch.arange(axis.keys, device=device) for axis in axes), indexing="ij")
    places = torch.unravel_index(queries, [len(axis.queries) for axis in axes])
    stands = [
        axis.queries.start + axis.queries.step * place
        for axis, place in zip(axes, places, strict=True)
    ]
    offsets = [
        key.flatten()[None] - stand[:, None] for key, stand in zip(keys, stands, strict=True)
    ]
    return torch.stack(offsets, dim=-1).to(dtype)
