"""How a call without content is computed: `choose_path` looks at sizes, mode, encoding and scores.

    choose_path(sizes, encoding, impl, dropout) → path,  path.attend(x, maps, bias) → output

    shift       every head looks at one pixel: a convolution
    separable   one softmax per axis; of long sequences only the keys that matter
    dense       one softmax over all pairs of queries and keys
    fourier     any score of a displacement: fast transforms

This is the only place where the values of scores decide: heads may turn out hard, a long sequence may need few keys,
and transforms may lose digits. To read a value of a GPU is to wait for it, so there values decide only over transforms
and over sequences whose weights would not fit into memory.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from convattn.encodings import AxisAdditiveEncoding, Encoding, Shift
from convattn.errors import ArgumentError
from convattn.functional.bands import Band, Bands, band_attention, find_bands
from convattn.functional.fourier import Filters, fourier_attention, fourier_filters, quick_length
from convattn.functional.path import REQUESTED, CallSizes, Cost, Path
from convattn.functional.reference import (
    HeadMaps,
    add_bias,
    join_axes,
    pad_keys,
    position_weights,
)
from convattn.functional.separable import separable_attention, values_first_attention
from convattn.functional.shift import Shifts, shift_attention
from convattn.functional.torch_modes import is_accelerator, without_autocast
from convattn.grid import Axis

SLOWNESS = {"transforms": 8.0, "long transforms": 20.0, "own channels": 2.0}
"""How many times longer an operation takes than in a large matrix product: in fast Fourier transforms, and if each head
mixes channels of its own. Measured on two cores (float32); only ratios of this size decide between paths. Those of
a long sequence leave the cache: 16 times with 16 channels and 28 times with 64 as long as in bands (one core). A head's
own channels take 1.0 to 2.7 times as long forward, 3.7 with 224 x 224 pixels, and 0.8 to 2.4 in a step (7 x 7 to
224 x 224 pixels, heads of 8 to 160 channels)."""

_HARD = 1 / 8
"""Share of the rounding of the softmax's dtype that a hard head may leak to other pixels."""

_WEAK = 1 / 2
"""Largest share of queries computed exactly beside transforms; with more, all queries are."""

_TAPS = 2
"""Most taps per head of a convolution that is taken by itself. Beside one softmax per axis, a kernel with 2.25 taps per
head takes 0.7 to 1.6 times as long, one with 4 taps 1.0 to 2.8 times (64 channels on 32 x 32 pixels, 256 on 14 x 14,
four heads, forward and with gradients, float32, one busy core)."""

_SURVEY = 40
"""Kernels by head with which transforms are prepared and their values read."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ShiftPath(Path):
    """A convolution: every head looks at one pixel."""

    shifts: Shifts
    # scores of heads that learn: their gradient is zero, not missing
    unmoved: tuple[Tensor, ...] = ()

    def cost(self) -> Cost:
        """Counts the kernel that holds all heads."""
        sizes = self.sizes
        kernel = math.prod(self.shifts.window[1]) * sizes.channels * sizes.outputs // sizes.groups
        return Cost(2 * sizes.batch * sizes.queries * kernel, kernel * sizes.itemsize)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Convolves."""
        sizes = self.sizes
        return shift_attention(
            self.shifts,
            sizes.axes,
            sizes.geometry,
            x,
            maps.whole(),
            maps.groups,
            bias,
            unmoved=self.unmoved,
        )


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ExplicitPath(Path):
    """Explicit weights along each axis, or one matrix of all pairs of queries and keys."""

    weights: tuple[Float[Tensor, "heads _ _"], ...]  # in at least float32
    dropout: float = 0.0  # probability of dropping a weight

    @property
    def by_axis(self) -> bool:
        """Whether there are weights along each axis."""
        return len(self.weights) == len(self.sizes.axes)

    def cost(self) -> Cost:
        """Counts the softmax, the means, and the matrices in the order of the path."""
        sizes, by_axis = self.sizes, self.by_axis
        memory = sizes.weights(by_axis=by_axis) * (4 + sizes.itemsize)
        if self.order == "weights":
            mixed = sizes.batch * sizes.channels * sizes.queries * sizes.itemsize
            memory += 3 * min(1 << 21, mixed)
        else:
            own = sizes.batch * sizes.heads * sizes.inner * (sizes.keys + sizes.queries)
            memory += own * sizes.itemsize
        return Cost(explicit_flops(sizes, self.order, by_axis=by_axis), memory)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Takes weighted means along each axis, before or after the matrices."""
        keys = pad_keys(x, self.sizes.geometry)
        if not self.by_axis:
            keys = keys.flatten(2)
        weights: Sequence[Tensor] = self.weights
        if self.dropout:
            weights = [nn.functional.dropout(weight, self.dropout) for weight in weights]
        if self.order == "values":
            weights = [weight.to(keys.dtype) for weight in weights]
            y = values_first_attention(weights, keys, maps)
        else:
            y = separable_attention(weights, keys, maps.whole(), maps.groups)
        return add_bias(y.view(*y.shape[:2], *self.sizes.grid), bias)


def explicit_flops(sizes: CallSizes, order: str, *, by_axis: bool) -> int:
    """Counts the operations with explicit weights.

    With the order "weights", weighted means of all channels come before W_h; with "values", each head's own channels
    come before weighted means of those. `by_axis` tells whether there is one softmax per axis.
    """
    softmax = 5 * sizes.weights(by_axis=by_axis)
    if order == "weights":
        return softmax + sizes.mixing(sizes.channels, by_axis=by_axis) + sizes.maps
    flops = softmax + sizes.products(sizes.keys, sizes.channels, sizes.inner)
    flops += sizes.mixing(sizes.inner, by_axis=by_axis)
    if sizes.factored:
        flops += sizes.products(sizes.queries, sizes.inner, sizes.outputs)
    return flops


def explicit_order(sizes: CallSizes, *, by_axis: bool) -> str:
    """Returns which order is estimated to be faster: "weights" or "values" first."""
    values = explicit_flops(sizes, "values", by_axis=by_axis) * SLOWNESS["own channels"]
    return "values" if values < explicit_flops(sizes, "weights", by_axis=by_axis) else "weights"


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class BandPath(Path):
    """The keys that matter to a long sequence: convolutions and means of blocks."""

    bands: Bands

    def cost(self) -> Cost:
        """Counts the bands, and keeps the memory of the largest."""
        return band_cost(self.sizes, self.bands)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Attends along the only axis."""
        sizes = self.sizes
        assert sizes.line is not None
        keys = pad_keys(x, sizes.geometry).flatten(2)
        y = band_attention(self.bands, sizes.axes[sizes.line], keys, maps.whole(), maps.groups)
        return add_bias(y.view(*y.shape[:2], *sizes.grid), bias)


def band_cost(sizes: CallSizes, bands: Bands) -> Cost:
    """Returns the cost of convolutions and means of the keys that matter, for images that are lines."""
    flops = numbers = 0
    for band in bands.parts:
        operations, held = _cost_of_one_band(sizes, band)
        flops += operations
        numbers = max(numbers, held)
    return Cost(flops, numbers * sizes.itemsize + 5 * bands.scores.nbytes // 4)


def _cost_of_one_band(sizes: CallSizes, band: Band) -> tuple[int, int]:
    """Returns the operations of a band, and how many numbers are in memory."""
    assert sizes.line is not None
    heads, step = len(band.heads), sizes.axes[sizes.line].queries.step
    matrix = sizes.channels * sizes.outputs // sizes.groups
    ends = (band.before, band.after)
    inside = sizes.batch * (sizes.queries - sum(count for count, _ in ends))
    if band.is_kernel(sizes.channels, matrix, step):
        flops = 2 * inside * band.taps * matrix + 2 * heads * band.taps * matrix
        numbers = inside * (step * sizes.channels + 2 * sizes.outputs)
    else:
        block = band.block(step)
        seen = sizes.channels * (step * (block - 1) + band.taps)
        flops = 2 * inside * heads * (seen + matrix)
        numbers = inside * (seen // block + heads * 2 * sizes.channels + sizes.outputs)
    for count, keys in ends:
        means = 2 * sizes.batch * (keys * sizes.channels + matrix)
        flops += heads * count * (5 * keys + means)
        numbers += heads * count * (2 * keys + sizes.batch * sizes.channels)
    return flops, numbers


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class FourierPath(Path):
    """Fast Fourier transforms."""

    filters: Filters

    def cost(self) -> Cost:
        """Counts transforms, then W_h."""
        flops, memory = transform_cost(self.sizes)
        return Cost(flops + self.sizes.maps, memory)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Filters the images."""
        keys = pad_keys(x, self.sizes.geometry)
        y = fourier_attention(self.filters, self.sizes.axes, keys, maps.whole(), maps.groups)
        return add_bias(y, bias)


def transform_cost(sizes: CallSizes) -> Cost:
    """Returns the cost of transforms of the images, products with the heads' filters, and transforms back."""
    size = math.prod([quick_length(2 * axis.keys - 1) for axis in sizes.axes])
    pairs = sizes.batch * (sizes.channels + 1) // 2
    one = 5 * size * max(1, round(math.log2(size)))
    flops = one * pairs * (sizes.heads + 1) + 6 * size * pairs * sizes.heads
    memory = 16 * size * sizes.heads + 3 * (5 << 19) + sizes.heads * sizes.queries * 8
    return Cost(flops, memory)


def choose_path(sizes: CallSizes, encoding: Encoding, impl: str, dropout: float) -> Path:
    """Chooses a path and computes what it needs from the encoding, to which gradients flow back.

    Args:
        sizes: The call.
        encoding: The encoding.
        impl: The requested path, or "auto".
        dropout: Probability of dropping a weight in this call.

    Returns:
        The path.

    Raises:
        ArgumentError: "shift" is requested of heads that are not hard.
    """
    # Without autocast anywhere, no context is entered: that takes longer than the test.
    off = torch._C._is_any_autocast_enabled()
    with without_autocast(sizes.device) if off else nullcontext():
        if impl == "dense" or dropout:
            reason = "dropout drops single weights, so each is computed"
            if impl == "dense":
                reason = REQUESTED
            return _dense(_table(encoding, sizes), sizes, reason, dropout)
        if impl == "fourier":
            return _fourier(_table(encoding, sizes), sizes, REQUESTED)
        if impl != "separable" and isinstance(encoding, Shift):
            shifts = _fixed_shifts(encoding, sizes)
            if impl == "shift" or _is_compact(shifts):
                reason = "each head looks at one displacement: a convolution"
                if impl == "shift":
                    reason = REQUESTED
                return ShiftPath(name="shift", reason=reason, sizes=sizes, shifts=shifts)
        if isinstance(encoding, AxisAdditiveEncoding):
            return _by_axis(encoding, sizes, impl)
        return _by_pair(encoding, sizes)


def _by_axis(encoding: AxisAdditiveEncoding, sizes: CallSizes, impl: str) -> Path:
    """Takes one softmax per axis, or a convolution if the heads turn out to be hard."""
    tables = encoding.axis_tables(sizes.axes, sizes.softmax_dtype, sizes.device)
    if impl == "shift" or (impl == "auto" and sizes.reads_scores):
        path = _hard(tables, sizes, impl)
        if path is not None:
            return path
    reason = "the scores are a sum over axes: one softmax per axis"
    if impl == "separable":
        reason = REQUESTED
    if sizes.long_line is not None and sizes.reads_scores:
        path = _long(encoding, sizes, tables[sizes.long_line], reason, impl)
        if path is not None:
            return path
    weights = []
    for table, axis in zip(tables, sizes.axes, strict=True):
        weights.append(position_weights(table, (axis,)))
    if _joins_axes(sizes):
        weights = [join_axes(weights)]
        reason += ", multiplied to those of all pairs, for two large products"
    return ExplicitPath(
        name="separable",
        reason=reason,
        sizes=sizes,
        order=explicit_order(sizes, by_axis=True),
        weights=tuple(weights),
    )


def _joins_axes(sizes: CallSizes) -> bool:
    """Tells whether on a GPU products over all pairs take less time than one for each axis, whose means are moved."""
    if not is_accelerator(sizes.device) or sizes.line is not None or not sizes.fits:
        return False
    pairs = sizes.mixing(sizes.channels, by_axis=False)
    joined = sizes.seconds(3, pairs, 12 * sizes.weights(by_axis=False))
    means = sizes.batch * sizes.heads * sizes.channels * max(sizes.queries, sizes.keys)
    moved = 4 * means * sizes.product_dtype.itemsize
    apart = sizes.seconds(8, sizes.mixing(sizes.channels, by_axis=True), moved)
    return joined <= apart


def _by_pair(encoding: Encoding, sizes: CallSizes) -> Path:
    """Computes scores that are no sum over axes: of few keys, by transforms, or of all pairs."""
    table = _table(encoding, sizes)
    if sizes.long_line is not None and sizes.reads_scores:
        path = _long(encoding, sizes, table.flatten(1), "one axis", "auto")
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
        return transform_cost(sizes).flops * SLOWNESS["transforms"] < pairs
    size = math.prod([quick_length(2 * axis.keys - 1) for axis in sizes.axes])
    moved = 6 * 16 * size * sizes.batch * sizes.channels * (sizes.heads + 1)
    transformed = sizes.seconds(_SURVEY * sizes.heads, 0, moved)
    explicit = sizes.seconds(3, pairs, 12 * sizes.weights(by_axis=False))
    return not sizes.fits or transformed < explicit


def _table(encoding: Encoding, sizes: CallSizes) -> Float[Tensor, "heads *displacements"]:
    return encoding.table(sizes.axes, sizes.softmax_dtype, sizes.device)


def _dense(table: Tensor, sizes: CallSizes, reason: str, dropout: float = 0.0) -> Path:
    """Computes explicit weights for all pairs of queries and keys."""
    return ExplicitPath(
        name="dense",
        reason=reason,
        sizes=sizes,
        order=explicit_order(sizes, by_axis=False),
        weights=(position_weights(table, sizes.axes),),
        dropout=dropout,
    )


def _fourier(table: Tensor, sizes: CallSizes, reason: str) -> Path:
    """Computes by transforms, or by explicit weights if too many queries would lose digits."""
    if not can_be_read(table):
        reason = "a compiled graph cannot read the values that transforms depend on"
        return _dense(table, sizes, reason)
    reason += sizes.waits
    filters = fourier_filters(table, sizes.axes, sizes.dtype)
    weak = filters.weak_share
    if weak > _WEAK:
        lost = f"transforms would lose digits at {weak:.0%} of the queries"
        return _dense(table, sizes, f"{lost}, so all are computed exactly")
    if weak:
        reason += f"; the {weak:.1%} of the queries that would lose digits are computed exactly"
    return FourierPath(name="fourier", reason=reason, sizes=sizes, filters=filters)


def _long(
    encoding: Encoding, sizes: CallSizes, table: Tensor, reason: str, impl: str
) -> Path | None:
    """Computes a long sequence without weights for every pair: in bands, or by transforms if heads are wide."""
    if not can_be_read(table):
        return None
    assert sizes.long_line is not None
    bands = find_bands(table, sizes.axes[sizes.long_line], sizes.dtype)
    pairs = explicit_flops(sizes, "weights", by_axis=True)
    banded = pairs if bands is None else band_cost(sizes, bands).flops
    if impl == "auto" and sizes.softmax_dtype == torch.float32:
        transforms = transform_cost(sizes).flops + sizes.maps
        if transforms * SLOWNESS["long transforms"] < min(pairs, banded):
            table = _table(encoding, sizes)
            return _fourier(table, sizes, "the sequence is long and heads are wide")
    if bands is None or banded >= pairs:
        return None
    reason = f"{reason}, in bands of up to {bands.widest} displacements{sizes.waits}"
    return BandPath(name="separable", reason=reason, sizes=sizes, leak=bands.leak, bands=bands)


def _hard(tables: Sequence[Tensor], sizes: CallSizes, impl: str) -> Path | None:
    """Returns the convolution that heads are if each looks at one pixel; None if they are soft."""
    most = torch.finfo(sizes.softmax_dtype).eps * _HARD
    readable = all(map(can_be_read, tables))
    shifts = find_shifts(tables, sizes.axes, most) if readable else None
    if shifts is None:
        if impl != "shift" or sizes.device.type == "meta":  # which has shapes, and no numbers
            return None
        reason = "a compiled graph, or torch.vmap over the parameters, cannot look at them"
        if readable:
            reason = f"more than {most:.2g} of a head's attention falls outside one pixel"
        raise ArgumentError(f"impl='shift' needs hard heads, but {reason}; use impl='auto'")
    learning = tuple(table for table in tables if table.requires_grad)
    reason = REQUESTED + sizes.waits
    if impl != "shift":
        if (shifts.leak and learning) or not _is_compact(shifts):
            return None
        rest = f" (all but {shifts.leak:.2g} of its attention)" if shifts.leak else ""
        reason = f"each head looks at one pixel{rest}: a convolution"
    return ShiftPath(
        name="shift",
        reason=reason,
        sizes=sizes,
        leak=shifts.leak,
        shifts=shifts,
        unmoved=learning,
    )


def _fixed_shifts(encoding: Shift, sizes: CallSizes) -> Shifts:
    """Returns the displacements of hard heads, limited to those that lead to a key."""
    # Beyond them every query looks at the same nearest key.
    offsets = []
    for displacement in encoding.displacements:
        limited = []
        for along, axis in zip(displacement, sizes.axes, strict=True):
            limited.append(min(max(along, axis.lowest), axis.highest))
        offsets.append(tuple(limited))
    return Shifts(tuple(offsets), leak=0.0)


def _is_compact(shifts: Shifts) -> bool:
    """Tells whether the kernel that holds all heads has few taps beside them."""
    return math.prod(shifts.window[1]) <= _TAPS * len(shifts.offsets)


def can_be_read(tensor: Tensor) -> bool:
    """Tells whether a computation may depend on the values of a tensor."""
    # Not on the device "meta", while compiling, or under `torch.vmap`, where each member of the batch has other values.
    if tensor.is_meta or torch.compiler.is_compiling():
        return False
    # vmap hides the axis it maps over
    return torch.func.debug_unwrap(tensor, recurse=True).ndim == tensor.ndim


def find_shifts(
    tables: Sequence[Float[Tensor, "heads _"]], axes: Sequence[Axis], most: float
) -> Shifts | None:
    """Finds out from scores alone whether all heads are hard, and where they look, in O(displacements).

    A head looks at the displacement Δ of its highest score if that leads to a key. If Δ leads out of the image, it must
    look at the nearest key, which has the highest or the lowest displacement that the query sees; exp s there, compared
    with its sum over all displacements on the other side, bounds the leak.

    Args:
        tables: Scores of all displacements along each axis, from the lowest to the highest.
        axes: Queries and keys along each axis.
        most: Largest leak at which a head counts as hard.

    Returns:
        The shifts, with a bound on the leak of every query; None if that is larger than `most`.

    Example:
        >>> shifts = find_shifts([torch.tensor([[-1e3, -1e3, 0.0, -1e3]])], [Axis(range(2), 3)], most=0.0)
        >>> shifts.offsets, shifts.leak
        (((1,),), 0.0)
    """
    offsets, leak = [], torch.zeros((), device="cpu")
    for table, axis in zip(tables, axes, strict=True):
        scores = table.detach()
        highest = scores.argmax(-1, keepdim=True)
        elsewhere = torch.softmax(scores, -1).scatter(
            -1, highest, 0.0 * scores.amax(-1, keepdim=True)
        )
        inside = elsewhere.sum(-1).amax().cpu()
        if not leak + inside <= most:
            return None
        along = highest + axis.lowest
        last = _leak_at_end(scores, along, axis)
        first = _leak_at_end(scores.flip(-1), -along, axis.mirrored)
        leak = leak + torch.stack([inside.double(), last.double(), first.double()]).amax()
        if not leak <= most:
            return None
        offsets.append(along[:, 0].tolist())
    return Shifts(tuple(zip(*offsets, strict=True)), leak.item())


def _leak_at_end(
    scores: Float[Tensor, "heads displacements"], offsets: Int[Tensor, "heads 1"], axis: Axis
) -> Float[Tensor, ""]:
    """Bounds the leak of queries whose displacement leads out after the last key, which they should look at."""
    # The displacements that lead to the last key are at first:stop.
    first, stop = axis.keys - 1, int(offsets.max()) - axis.lowest
    if first >= stop:
        return torch.zeros((), device="cpu")
    nearest, lower = scores[:, first:stop], scores[:, :first]
    if first:
        # All that lies below, as its largest score divided by the softmax there: quicker than its logarithm.
        share = torch.softmax(lower, -1).amax(-1, keepdim=True)
        below = lower.amax(-1, keepdim=True) - share.log()
        lower = torch.cat([below, nearest], -1).logcumsumexp(-1)[:, :-1]
    else:
        lower = nn.functional.pad(nearest.logcumsumexp(-1)[:, :-1], (1, 0), value=-math.inf)
    step = axis.queries.step
    displacements = axis.displacements(scores.device)[first:stop]
    leads_out = (displacements < offsets)[:, ::step]
    ratios = (lower - nearest).exp()[:, ::step]
    return ratios.masked_fill(~leads_out, 0.0).amax().cpu()
