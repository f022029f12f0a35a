"""How a call is computed: `choose_path` looks at sizes, mode, heads and scores, and names one path.

    choose_path(sizes, heads, impl) → path,  path.attend(x, maps, bias) → output

    content     scores that depend on the images: a fused kernel, or some queries at a time

    shift       every head looks at one pixel: a convolution
    separable   one softmax per axis; of long sequences only the keys that matter
    dense       one softmax over all pairs of queries and keys
    fourier     any score of a displacement: fast transforms

This is the only place where the values of scores decide: heads may turn out hard, a long sequence may need few keys,
and transforms may lose digits. To read a value of a GPU is to wait for it, so there values decide only over transforms
and over sequences whose weights would not fit into memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings import AxisAdditiveEncoding, Encoding
from convattn.errors import ArgumentError, require_name
from convattn.functional.bands import BandPath, band_cost, find_bands
from convattn.functional.content import ContentPath, SecondDegree, fastest_form
from convattn.functional.definition import ReferencePath
from convattn.functional.dense import DensePath, PiecewisePath
from convattn.functional.fourier import FourierPath, fourier_filters, padded_pixels, transform_cost
from convattn.functional.path import REQUESTED, CallSizes, Heads, Path
from convattn.functional.reference import join_axes, position_weights
from convattn.functional.separable import SMALL_BYTES, SeparablePath, values_come_first
from convattn.functional.shift import ShiftPath, find_shifts, fixed_shifts, hard_leak
from convattn.functional.torch_modes import can_be_read, is_accelerator, without_autocast

_SLOW_TRANSFORMS = 8.0
"""How many times longer an operation takes in fast Fourier transforms than in a large matrix product. Measured on two
cores (float32); only ratios of this size decide."""

_SLOW_LONG_TRANSFORMS = 20.0
"""The same for a long sequence, whose transforms leave the cache: 16 times with 16 channels and 28 times with 64 as
long as in bands (one core)."""

_WEAK = 1 / 2
"""Largest share of queries computed exactly beside transforms; with more, all queries are."""

_JOINED = 64
"""Most keys of an image whose axes are joined on a CPU, unless the call is small: one large product is then quicker
than many small ones. A step with 7 x 7 pixels takes 0.6 to 0.8 of the time (float32, 64 to 512 channels, batch of 16,
one core), with 14 x 14 pixels 1.2 to 1.5 times as long; in bfloat16 with AMX a step with 8 x 8 pixels half the time."""

_SURVEY = 40
"""Kernels by head with which transforms are prepared and their values read."""


AUTO = "auto"
"""Asks for the way that `choose_path` chooses."""

WAYS = {
    way.name: way
    for way in (
        ContentPath,
        DensePath,
        FourierPath,
        ReferencePath,
        SecondDegree,
        SeparablePath,
        ShiftPath,
    )
}
"""What may be asked for, by its name."""


def require_way(impl: str, heads: Heads) -> None:
    """Raises UnknownNameError if there is no such way of computing, ArgumentError if it refuses the heads."""
    if impl == AUTO:
        return
    require_name("impl", impl, [AUTO, *WAYS])
    reason = WAYS[impl].refuses(heads)
    if reason is not None:
        others = [name for name, way in WAYS.items() if way.refuses(heads) is None]
        names = " or ".join(map(repr, [AUTO, *others]))
        raise ArgumentError(
            f"impl={impl!r} cannot compute this layer, because {reason}: use {names}"
        )


def choose_path(sizes: CallSizes, heads: Heads, impl: str = AUTO) -> Path:
    """Chooses a path and computes what it needs from the encoding, to which gradients flow back.

    Args:
        sizes: The sizes of the call.
        heads: How its heads weigh keys.
        impl: The requested way, by its name, or "auto".

    Returns:
        The path.

    Raises:
        ArgumentError: The way requested refuses the heads, or "shift" is requested of heads that are not hard.
    """
    require_way(impl, heads)
    way = WAYS.get(impl)
    if way is ReferencePath:
        return ReferencePath(reason=REQUESTED, sizes=sizes, heads=heads)
    if heads.content is not None:
        return _by_content(sizes, heads, way)
    with without_autocast(sizes.device):
        return _by_position(sizes, heads, way)


def _by_content(sizes: CallSizes, heads: Heads, way: object) -> Path:
    """Computes scores of images, beside those of positions alone if a gate keeps them apart."""
    form = fastest_form(heads, sizes.axes, sizes.device)
    if way is SecondDegree:
        form = SecondDegree(heads, sizes.axes)
    position = None
    if heads.share is not None:
        position = choose_path(sizes, Heads(heads.encoding, dropout=heads.dropout))
    reason = "the scores depend on the input" if way is None else REQUESTED
    return ContentPath.of(sizes, form, reason, position)


def _by_position(sizes: CallSizes, heads: Heads, way: object) -> Path:
    """Computes scores of displacements alone."""
    encoding = heads.encoding
    if way is DensePath or heads.dropout:
        dropped = "dropout drops single weights, so each is computed"
        reason = REQUESTED if way is DensePath else dropped
        return _dense(_table(encoding, sizes), sizes, reason, heads.dropout)
    if way is FourierPath:
        return _fourier(_table(encoding, sizes), sizes, REQUESTED)
    displacements = encoding.fixed_displacements
    if way is not SeparablePath and displacements is not None:
        looks = "each head looks at one displacement: a convolution"
        reason = REQUESTED if way is ShiftPath else looks
        shifts = fixed_shifts(displacements, sizes.axes)
        if way is ShiftPath or shifts.is_compact:
            return ShiftPath(reason=reason, sizes=sizes, shifts=shifts)
    if isinstance(encoding, AxisAdditiveEncoding):
        return _by_axis(encoding, sizes, way)
    return _by_pair(encoding, sizes)


def _by_axis(encoding: AxisAdditiveEncoding, sizes: CallSizes, way: object) -> Path:
    """Takes one softmax per axis, or a convolution if the heads turn out to be hard."""
    tables = encoding.axis_tables(sizes.axes, sizes.softmax_dtype, sizes.device)
    if way is ShiftPath or (way is None and sizes.reads_scores):
        path = _hard(tables, sizes, way)
        if path is not None:
            return path
    additive = "the scores are a sum over axes: one softmax per axis"
    reason = REQUESTED if way is SeparablePath else additive
    if sizes.long_line is not None and sizes.reads_scores:
        path = _long(encoding, sizes, tables[sizes.long_line], reason, way)
        if path is not None:
            return path
    if way is None and sizes.line is not None and not sizes.keeps_weights:
        return _dense(_table(encoding, sizes), sizes, "one axis, on which nearly all pairs count")
    if len(set(sizes.axes)) == 1:
        weights = position_weights(torch.cat(tables), sizes.axes[:1]).chunk(len(tables))
    else:
        weights = tuple(
            position_weights(table, (axis,)) for table, axis in zip(tables, sizes.axes, strict=True)
        )
    if _joins_axes(sizes):
        weights = (join_axes(weights),)
        reason += ", multiplied to those of all pairs, for two large products"
    return SeparablePath(
        reason=reason,
        sizes=sizes,
        values_first=values_come_first(sizes, by_axis=True),
        weights=weights,
    )


def _joins_axes(sizes: CallSizes) -> bool:
    """Tells whether products over all pairs take less time than one for each axis, whose means are moved."""
    if sizes.line is not None:
        return False
    means = sizes.batch * sizes.heads * sizes.channels * max(sizes.queries, sizes.keys)
    means *= sizes.product_dtype.itemsize
    if not is_accelerator(sizes.device):
        return means > SMALL_BYTES and sizes.keys <= _JOINED
    if not sizes.fits:
        return False
    pairs = sizes.mixing(sizes.channels, by_axis=False)
    joined = sizes.seconds(3, pairs, 12 * sizes.weights(by_axis=False))
    apart = sizes.seconds(8, sizes.mixing(sizes.channels, by_axis=True), 4 * means)
    return joined <= apart


def _by_pair(encoding: Encoding, sizes: CallSizes) -> Path:
    """Computes scores that are no sum over axes: of few keys, by transforms, or of all pairs."""
    table = _table(encoding, sizes)
    if sizes.long_line is not None and sizes.reads_scores:
        path = _long(encoding, sizes, table.flatten(1), "one axis", None)
        if path is not None:
            return path
    if _transforms(sizes):
        reason = "the scores are not a sum over axes, and the image is large enough for transforms"
        return _fourier(table, sizes, reason)
    return _dense(table, sizes, "the scores are not a sum over axes, and the image is small")


def _transforms(sizes: CallSizes) -> bool:
    """Tells whether transforms take less time than all weights."""
    pairs = sizes.mixing(sizes.channels, by_axis=False)
    if not is_accelerator(sizes.device):
        return transform_cost(sizes).flops * _SLOW_TRANSFORMS < pairs
    moved = 6 * 16 * padded_pixels(sizes) * sizes.batch * sizes.channels * (sizes.heads + 1)
    transformed = sizes.seconds(_SURVEY * sizes.heads, 0, moved)
    explicit = sizes.seconds(3, pairs, 12 * sizes.weights(by_axis=False))
    return not sizes.fits or transformed < explicit


def _table(encoding: Encoding, sizes: CallSizes) -> Float[Tensor, "heads *displacements"]:
    return encoding.table(sizes.axes, sizes.softmax_dtype, sizes.device)


def _dense(table: Tensor, sizes: CallSizes, reason: str, dropout: float = 0.0) -> Path:
    """Computes explicit weights of all pairs, of some queries at a time if they are many."""
    options: dict[str, Any] = {
        "sizes": sizes,
        "values_first": values_come_first(sizes, by_axis=False),
        "dropout": dropout,
    }
    if sizes.keeps_weights:
        weights = position_weights(table, sizes.axes)
        return DensePath(reason=reason, weights=weights, **options)
    reason += ", some queries at a time"
    return PiecewisePath(reason=reason, table=table.flatten(1), **options)


def _fourier(table: Tensor, sizes: CallSizes, reason: str) -> Path:
    """Computes by transforms, or by explicit weights if too many queries would lose digits."""
    if not can_be_read(table):
        return _dense(table, sizes, "the values that transforms depend on cannot be read here")
    reason += sizes.waits
    filters = fourier_filters(table, sizes.axes, sizes.dtype)
    weak = filters.weak.double().mean().item()
    if weak > _WEAK:
        return _dense(
            table,
            sizes,
            f"transforms would lose digits at {weak:.0%} of the queries, so all are computed exactly",
        )
    if weak:
        reason += f"; the {weak:.1%} of the queries that would lose digits are computed exactly"
    return FourierPath(reason=reason, sizes=sizes, filters=filters)


def _long(
    encoding: Encoding,
    sizes: CallSizes,
    table: Tensor,
    reason: str,
    way: object,
) -> Path | None:
    """Computes a long sequence without weights for every pair: in bands, or by transforms if heads are wide."""
    if not can_be_read(table):
        return None
    assert sizes.long_line is not None
    bands = find_bands(table, sizes.axes[sizes.long_line], sizes.dtype)
    pairs = sizes.explicit_flops(by_axis=True)
    banded = pairs if bands is None else band_cost(sizes, bands).flops
    if way is None and sizes.softmax_dtype == torch.float32:
        transforms = transform_cost(sizes).flops + sizes.maps
        if transforms * _SLOW_LONG_TRANSFORMS < min(pairs, banded):
            reason = "the sequence is long and heads are wide"
            return _fourier(_table(encoding, sizes), sizes, reason)
    if bands is None or banded >= pairs:
        return None
    reason = f"{reason}, in bands of up to {bands.widest} displacements{sizes.waits}"
    return BandPath(reason=reason, sizes=sizes, leak=bands.leak, bands=bands)


def _hard(tables: Sequence[Tensor], sizes: CallSizes, way: object) -> Path | None:
    """Returns the convolution that heads are if each looks at one pixel; None if they are soft."""
    most = hard_leak(tables[0].dtype)
    readable = all(map(can_be_read, tables))
    shifts = find_shifts(tables, sizes.axes, most) if readable else None
    if shifts is None:
        if way is not ShiftPath or sizes.device.type == "meta":  # which has shapes, and no numbers
            return None
        reason = "a compiled graph, or torch.vmap over the parameters, cannot look at them"
        if readable:
            reason = f"more than {most:.2g} of a head's attention falls outside one pixel"
        raise ArgumentError(f"impl='shift' needs hard heads, but {reason}; use impl='auto'")
    learning = tuple(table for table in tables if table.requires_grad)
    reason = REQUESTED + sizes.waits
    if way is not ShiftPath:
        if (shifts.leak and learning) or not shifts.is_compact:
            return None
        rest = f" (all but {shifts.leak:.2g} of its attention)" if shifts.leak else ""
        reason = f"each head looks at one pixel{rest}: a convolution"
    return ShiftPath(
        reason=reason,
        sizes=sizes,
        leak=shifts.leak,
        shifts=shifts,
        unmoved=learning,
    )
