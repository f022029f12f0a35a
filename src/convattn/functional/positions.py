"""Relative positions as a few channels of queries and keys, so that any fused attention kernel adds them to its scores.

A score that is a sum over axes, s_h(k − q) = Σ_a s_{h,a}(k_a − q_a), is an inner product of a vector of the query's
place and one of the key's place (`docs/explanation/theory.md` §6):

    query  (s_{h,a}(j − q_a)) for every axis a and every position j on it      key  (1 where k_a = j, else 0)

These are H + W channels for an image of H × W keys, as exact as rounding. A score of second degree needs n + 1
channels, up to a term of the query alone, which the softmax drops; but its terms cancel (`quadratic_channels`).
"""

from collections.abc import Sequence
from itertools import product
from math import tanh
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.encodings import AxisAdditiveEncoding, Encoding, Quadratic
from convattn.encodings.encoding import compute_parameters
from convattn.errors import ShapeError, must_be, require
from convattn.functional.reference import (
    displacement_scores,
    places_along,
    raised,
    scores_of_features,
)
from convattn.functional.torch_modes import (
    at_least_float32,
    missing_channels,
    without_autocast,
)
from convattn.grid import Axis, whole_number


class Channels(NamedTuple):
    """Channels to append to queries and keys."""

    query: Float[Tensor, "*images heads queries channels"]
    key: Float[Tensor, "keys channels"]

    def append(
        self,
        query: Float[Tensor, "images heads queries width"],
        key: Float[Tensor, "images heads keys width"],
    ) -> tuple[Float[Tensor, "images heads queries _"], Float[Tensor, "images heads keys _"]]:
        """Appends the channels, and zeros to tokens without a place, as a class token, which come first.

        Zero channels follow, up to a width at which torch's kernel is fast: a multiple of four on a CPU, of eight
        elsewhere.

        Args:
            query: Queries.
            key: Keys.

        Returns:
            Longer queries and keys.

        Raises:
            ShapeError: There are fewer queries or keys than places.
        """
        return _appended(query, self.query), _appended(key, self.key)


def _appended(tokens: Tensor, channels: Tensor) -> Float[Tensor, "images heads tokens _"]:
    first = tokens.shape[2] - channels.shape[-2]
    if first < 0:
        expected = f"at least {channels.shape[-2]}, the number of places"
        raise ShapeError(must_be("the number of tokens", expected, tokens.shape[2]))
    missing = missing_channels(tokens.shape[-1] + channels.shape[-1], tokens.device)
    channels = functional.pad(channels, (0, missing, first, 0))
    return torch.cat([tokens, channels.expand(*tokens.shape[:-1], -1)], dim=-1)


_LEAST = 1 / 4
"""Share of the range of a dtype within which scores are kept: a key of score −∞ would make 0 · ∞ in the product."""


def position_channels(
    encoding: Encoding,
    axes: Sequence[Axis | int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    *,
    scale: float = 1.0,
) -> Channels:
    """Returns channels for queries and keys whose inner product is the encoding's score of their displacement.

    Where all scores of a query are below −1024, they are so up to a number, which the softmax drops.

    There is one channel for each key along each axis. Scores that are not sums over axes take one for every key, which
    pays in small windows only. In a dtype of fewer than 32 bits there are twice as many: the leading digits of the
    scores, and what they leave out. Gradients flow to the encoding.

    Source: `docs/explanation/theory.md` §6.

    Args:
        encoding: Displacement → score per head.
        axes: Queries and keys along each axis, or a number of pixels that are both.
        dtype: Dtype of the queries and keys.
        device: Their device.
        scale: Factor by which the kernel multiplies inner products, as 1/√width; the queries' channels are divided by
            it.

    Returns:
        The channels; places are in row-major order. Those of keys are 0 and 1.

    Raises:
        ShapeError: The grid has another number of axes than the encoding.
        EncodingRangeError: The grid has displacements that the encoding does not hold.
        ArgumentError: A number of pixels is not an integer of at least 1.

    Example:
        >>> channels = position_channels(Quadratic(3, 2), (5, 7))
        >>> channels.query.shape, channels.key.shape
        (torch.Size([3, 35, 12]), torch.Size([35, 12]))
        >>> scores = channels.query @ channels.key.mT  # of every query and key
    """
    grid = as_axes(axes)
    wide = at_least_float32(dtype)
    with without_autocast(device or torch.device("cpu")):
        if isinstance(encoding, AxisAdditiveEncoding):
            query = score_channels(encoding.axis_tables(grid, wide, device), grid)
            key = one_hot(grid, dtype, device)
        else:
            query = raised(_finite(displacement_scores(encoding.table(grid, wide, device), grid)))
            key = torch.eye(query.shape[-1], dtype=dtype, device=device)
        query = query / scale
    if dtype.itemsize >= wide.itemsize:
        return Channels(query, key)
    return in_parts(Channels(query, key), dtype, 2)


def in_parts(channels: Channels, dtype: torch.dtype, query: int, key: int = 1) -> Channels:
    """Writes channels in a narrower dtype, each as a sum: leading digits, and what they leave out.

    Args:
        channels: Channels in at least float32.
        dtype: The narrower dtype.
        query: Parts of each number of the queries.
        key: Parts of each number of the keys.

    Returns:
        As many channels for each as there are pairs of parts.
    """
    pairs = product(_parts(channels.query, dtype, query), _parts(channels.key, dtype, key))
    queries, keys = zip(*pairs, strict=True)
    return Channels(torch.cat(queries, dim=-1), torch.cat(keys, dim=-1))


def _parts(numbers: Tensor, dtype: torch.dtype, count: int) -> list[Tensor]:
    limit = torch.finfo(dtype).max
    parts = []
    for _ in range(count):
        leading = numbers.clamp(-limit, limit).to(dtype)
        parts.append(leading)
        numbers = numbers - leading
    return parts


def quadratic_channels(
    encoding: Quadratic,
    axes: Sequence[Axis | int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    *,
    scale: float = 1.0,
) -> Channels:
    """Returns n + 1 channels in place of those of `position_channels`, for quadratic scores on n axes.

    Up to a term of the query alone, −α‖k − q − Δ‖² = 2α(q + Δ)·k − α‖k‖², with places counted from the middle of the
    keys. The terms are larger than their sum, so digits are lost: `quadratic_error` bounds how many.

    Args:
        encoding: The encoding.
        axes: Queries and keys along each axis, or a number of pixels that are both.
        dtype: Dtype of the queries and keys.
        device: Their device.
        scale: Factor by which the kernel multiplies inner products; the query's channels are divided by it.

    Returns:
        The channels.

    Raises:
        ShapeError: The grid has another number of axes than the encoding.
        ArgumentError: A number of pixels is not an integer of at least 1.

    Example:
        >>> channels = quadratic_channels(Quadratic(3, 2), (5, 7))
        >>> channels.query.shape, channels.key.shape
        (torch.Size([3, 35, 3]), torch.Size([35, 3]))
    """
    require(isinstance(encoding, Quadratic), "encoding", "a Quadratic", encoding)
    grid = as_axes(axes)
    encoding.require_axes(grid)
    wide = at_least_float32(dtype)
    with without_autocast(device or torch.device("cpu")):
        square, linear = second_degree(encoding, wide, device)
        query = second_degree_query(square[:, None], linear[:, None], grid) / scale
        key = second_degree_key(grid, query)
    return Channels(query.to(dtype), key.to(dtype))


def quadratic_error(
    encoding: Quadratic,
    axes: Sequence[Axis | int],
    dtype: torch.dtype = torch.float32,
    *,
    width: int = 0,
) -> float:
    """Bounds what rounding does to attention weights if scores are taken from `quadratic_channels`.

    If every score of a query is off by at most B, its weights move by at most tanh(B/2) in all. B is the rounding of
    numbers and partial sums, (width + n + 5) eps/2 Σ|terms|, at the query and the key of the largest terms.

    Args:
        encoding: The encoding.
        axes: Queries and keys along each axis, or a number of pixels that are both.
        dtype: Dtype in which channels are held; sums are taken in at least float32.
        width: Channels of content that are in the same inner product.

    Returns:
        The largest share of a query's attention that is at a wrong key; a single weight is off by no more.

    Raises:
        ShapeError: The grid has another number of axes than the encoding.
        ArgumentError: A number of pixels is not an integer of at least 1.

    Example:
        >>> 1e-6 < quadratic_error(Quadratic(9, 2, sharpness=1.0), (14, 14)) < 1e-3
        True
    """
    grid = as_axes(axes)
    encoding.require_axes(grid)
    square, linear = second_degree(encoding, torch.float64)
    return second_degree_error(square.abs(), linear.abs(), grid, dtype, width)


def second_degree(
    encoding: Quadratic,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> tuple[Float[Tensor, " heads"], Float[Tensor, "heads dims"]]:
    """Returns c₀ = −α and c = 2αΔ, with which the score is c₀‖δ‖² + c·δ up to a number per head."""
    compute_parameters(encoding)
    sharpness = encoding.sharpness.to(device, dtype)
    return -sharpness, 2 * sharpness[:, None] * encoding.centres.to(device, dtype)


def as_axes(axes: Sequence[Axis | int]) -> tuple[Axis, ...]:
    """Returns queries and keys along each axis; a number stands for as many pixels, which are both.

    Raises ArgumentError for a number that is not an integer of at least 1.
    """
    require(isinstance(axes, Sequence), "axes", "numbers of pixels along each axis, or Axis", axes)
    grid = []
    for given in axes:
        axis = given
        if not isinstance(given, Axis):
            size = whole_number("axes", given)
            axis = Axis(range(size), size)
        grid.append(axis)
    return tuple(grid)


def score_channels(
    tables: Sequence[Float[Tensor, "heads _"]], axes: Sequence[Axis]
) -> Float[Tensor, "heads queries channels"]:
    """Returns the queries' channels of scores that are sums over axes, from one table of displacements per axis."""
    parts = []
    for table, axis in zip(tables, axes, strict=True):
        parts.append(raised(displacement_scores(_finite(table), (axis,))))
    return _side_by_side(parts, [len(axis.queries) for axis in axes])


def feature_channels(
    query: Float[Tensor, "images heads queries width"],
    features: Sequence[Float[Tensor, "heads_or_one _ width"]],
    axes: Sequence[Axis],
) -> Float[Tensor, "images heads queries channels"]:
    """Returns the queries' channels of scores q·r_δ, from one table of vectors r_δ per axis."""
    parts = []
    for table, places in zip(features, places_along(axes, device=query.device), strict=True):
        parts.append(scores_of_features(query, table, places))
    return torch.cat(parts, dim=-1)


def _finite(scores: Tensor) -> Float[Tensor, "..."]:
    """Raises scores of −∞ to numbers that leave no weight either."""
    return scores.clamp(min=torch.finfo(scores.dtype).min * _LEAST)


def one_hot(
    axes: Sequence[Axis],
    dtype: torch.dtype,
    device: torch.device | None,
) -> Float[Tensor, "keys channels"]:
    """Returns the keys' channels: for each axis, 1 at the key's position and 0 elsewhere."""
    parts = [torch.eye(axis.keys, dtype=dtype, device=device) for axis in axes]
    return _side_by_side(parts, [axis.keys for axis in axes])


def _side_by_side(
    parts: Sequence[Float[Tensor, "*heads _ _"]], sizes: Sequence[int]
) -> Float[Tensor, "*heads places channels"]:
    """Repeats each axis's rows at every place of the other axes, and puts the axes' channels side by side."""
    spread = []
    for number, part in enumerate(parts):
        ones = [1] * len(sizes)
        ones[number] = sizes[number]
        heads = part.shape[:-2]
        rows = part.view(*heads, *ones, part.shape[-1])
        spread.append(rows.expand(*heads, *sizes, -1).flatten(len(heads), -2))
    return torch.cat(spread, dim=-1)


def second_degree_query(
    square: Float[Tensor, "*many queries_or_one"],
    linear: Float[Tensor, "*many queries_or_one dims"],
    axes: Sequence[Axis],
) -> Float[Tensor, "*many queries channels"]:
    """Returns the queries' channels of scores c₀‖δ‖² + c·δ: (c − 2c₀q, c₀)."""
    queries = _centred([axis.queries for axis in axes], axes, square)
    slopes = linear - 2 * square[..., None] * queries
    squares = square[..., None].expand(*slopes.shape[:-1], 1)
    return torch.cat([slopes, squares], dim=-1)


def second_degree_key(
    axes: Sequence[Axis], like: Float[Tensor, "..."]
) -> Float[Tensor, "keys channels"]:
    """Returns the keys' channels of scores c₀‖δ‖² + c·δ: (k, ‖k‖²)."""
    keys = _centred([range(axis.keys) for axis in axes], axes, like)
    squares = (keys**2).sum(-1, keepdim=True)
    return torch.cat([keys, squares], dim=-1)


def _centred(
    positions: Sequence[range],
    axes: Sequence[Axis],
    like: Tensor,
) -> Float[Tensor, "places dims"]:
    """Returns the places on a grid of positions, counted from the middle of the keys."""
    along = []
    for own, axis in zip(positions, axes, strict=True):
        numbers = torch.arange(own.start, own.stop, own.step, device=like.device)
        along.append(numbers.to(like.dtype) - (axis.keys - 1) / 2)
    grids = torch.meshgrid(*along, indexing="ij")
    return torch.stack(grids, dim=-1).flatten(0, -2)


def second_degree_error(
    square: Float[Tensor, " heads"],
    linear: Float[Tensor, "heads dims"],
    axes: Sequence[Axis],
    dtype: torch.dtype,
    width: int,
) -> float:
    """Bounds the share of attention that rounding moves, from bounds of |c₀| and |c|; see `quadratic_error`."""
    largest = torch.zeros_like(square)
    for number, axis in enumerate(axes):
        middle = (axis.keys - 1) / 2
        farthest = max(abs(axis.queries[0] - middle), abs(axis.queries[-1] - middle))
        slope = linear[:, number] + 2 * square * farthest
        largest = largest + slope * middle + square * middle**2
    roundings = torch.finfo(dtype).eps / 2 * (len(axes) + 5)
    roundings += torch.finfo(at_least_float32(dtype)).eps / 2 * width
    return tanh(roundings * largest.amax().item() / 2)
