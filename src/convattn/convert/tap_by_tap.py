"""Convolutions summed tap by tap: another road to the same numbers, to see what rounding does."""

from jaxtyping import Float
from torch import Tensor

from convattn.convert.taps import Taps
from convattn.functional import combine_heads, pad_keys, query_pixels
from convattn.grid import Axis

__all__ = ["tap_by_tap"]


def tap_by_tap(taps: Taps, x: Float[Tensor, "batch channels *spatial"]) -> Float[Tensor, "batch outputs *queries"]:
    """Computes a convolution in its own dtype as a sum over taps.

    Args:
        taps: The convolution.
        x: Images.

    Returns:
        What the convolution returns, up to rounding.
    """
    axes, keys = taps.geometry.axes(x.shape[2:]), pad_keys(x, taps.geometry)
    y = None
    for displacement, weight in zip(taps.displacements, taps.maps, strict=True):
        shifted = [Axis(_shift(axis.queries, d), axis.keys) for axis, d in zip(axes, displacement, strict=True)]
        term = combine_heads(query_pixels(keys, shifted)[:, None], weight[None], taps.groups)
        y = term if y is None else y + term
    assert y is not None
    return y if taps.bias is None else y + taps.bias.view(-1, *(1,) * len(axes))


def _shift(positions: range, by: int) -> range:
    return range(positions.start + by, positions.stop + by, positions.step)
