"""A convolution computed in two other orders, to see the effect of rounding: tap by tap, and in one product."""

from collections.abc import Iterator

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.convert.taps import Taps
from convattn.functional import combine_heads, pad_keys, query_pixels
from convattn.grid import Axis


def tap_by_tap(taps: Taps, x: Float[Tensor, "batch channels *spatial"]) -> Float[Tensor, "batch outputs *queries"]:
    """Computes a convolution in its own dtype as a sum over taps."""
    y = None
    for pixels, weight in zip(tap_pixels(taps, x), taps.maps, strict=True):
        term = combine_heads(pixels[:, None], weight[None], taps.groups)
        y = term if y is None else y + term
    assert y is not None
    return _with_bias(taps, y)


def in_one_product(taps: Taps, x: Float[Tensor, "batch channels *spatial"]) -> Float[Tensor, "batch outputs *queries"]:
    """Computes a convolution in its own dtype as one matrix product, with a copy of the image for every tap."""
    every = rearrange(
        torch.stack(list(tap_pixels(taps, x)), 1),
        "b taps (groups c) ... -> b 1 (groups taps c) ...",
        groups=taps.groups,
    )
    maps = rearrange(taps.maps, "taps outputs c -> 1 outputs (taps c)")
    return _with_bias(taps, combine_heads(every, maps, taps.groups))


def tap_pixels(taps: Taps, x: Tensor) -> Iterator[Tensor]:
    """Yields, for each tap, the pixels that all queries see there."""
    axes, keys = taps.geometry.axes(x.shape[2:]), pad_keys(x, taps.geometry)
    for displacement in taps.displacements:
        shifted = [
            Axis(range(axis.queries.start + d, axis.queries.stop + d, axis.queries.step), axis.keys)
            for axis, d in zip(axes, displacement, strict=True)
        ]
        yield query_pixels(keys, shifted)


def _with_bias(taps: Taps, y: Tensor) -> Tensor:
    return y if taps.bias is None else y + taps.bias.view(-1, *(1,) * (y.ndim - 2))
