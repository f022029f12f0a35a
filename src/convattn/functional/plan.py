"""How a call without content is computed: `plan` looks at sizes, mode, dtype, encoding and scores, and names one path.

    plan(work, encoding, impl, dropout) → path,  path.attend(x, maps, bias) → output

    shift       every head looks at one pixel: a convolution
    separable   one softmax per axis; of long sequences only the keys that matter
    dense       one softmax over all pairs of queries and keys
    fourier     any score of a displacement: fast transforms

This is the only place where the values of scores decide: heads may turn out hard, a long sequence may need few keys,
and transforms may lose digits. To read a value of a GPU is to wait for it, so there values decide only over transforms
and over sequences whose weights would not fit into memory. Each path has its cost beside it. Costs follow from sizes
alone: on a CPU operations, elsewhere the time of operations and of memory that is moved. A multiplication and an
addition count as two operations; bytes are working memory beyond input, output and parameters. Heads are assumed to see
many pixels: those that see few take fewer operations.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from convattn.encodings import AxisAdditiveEncoding, Encoding, Shift
from convattn.errors import ArgumentError
from convattn.functional.bands import Band, Bands, band_attention, find_bands
from convattn.functional.fourier import Filters, fourier_attention, fourier_filters, quick_length
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
from convattn.functional.workspace import piece_bytes
from convattn.grid import Axis, Geometry

SLOWNESS = {"transforms": 8.0, "long transforms": 20.0, "own channels": 2.0}
"""How many times longer an operation takes than in a large matrix product: in fast Fourier transforms, and if each head
mixes channels of its own. Measured on two cores (float32); only ratios of this size decide between paths. Those of
a long sequence leave the cache: 16 times with 16 channels and 28 times with 64 as long as in bands (one core). A head's
own channels take 1.0 to 2.7 times as long forward, 3.7 with 224 x 224 pixels, and 0.8 to 2.4 in a step (7 x 7 to
224 x 224 pixels, heads of 8 to 160 channels)."""

REQUESTED = "requested"
"""Reason of a path that was not chosen."""

_HARD = 1 / 8
"""Share of the rounding of the softmax's dtype that a hard head may leak to other pixels."""

_WEAK = 1 / 2
"""Largest share of queries computed exactly beside transforms; with more, all queries are."""

_TAPS = 2
"""Most taps per head of a convolution that is taken by itself. Beside one softmax per axis, a kernel with 2.25 taps per
head takes 0.7 to 1.6 times as long, one with 4 taps 1.0 to 2.8 times (64 channels on 32 x 32 pixels, 256 on 14 x 14,
four heads, forward and with gradients, float32, one busy core)."""

_RATES = {torch.float64: 3e13, torch.float32: 5e13}
_FAST = 4e14
"""Operations a second in large products by dtype, and in 16 bits: estimates for a GPU of 2023, not measured."""

_BANDWIDTH = 2e12
"""Bytes a second that a GPU moves: an estimate for the same, not measured."""

_START = 5e-6
"""Seconds in which a GPU's kernel starts: an estimate, too."""

_SURVEY = 40
"""Kernels by head with which transforms are prepared and their values read."""

_MOST_WEIGHTS = 8
"""Pieces of memory (`piece_bytes`) that the weights of a layer may take on a GPU: gradients keep them."""

_LONG = 512
"""Number of keys from which a sequence is long: all weights then cost more than finding those that matter."""


class Cost(NamedTuple):
    """Operations and working memory."""

    flops: int  # floating-point operations
    bytes: int  # working memory


@dataclass(frozen=True)
class Work:
    """The sizes of one call of an attention layer."""

    batch: int  # 1 where it is a symbol of an export, which no comparison of costs may pin
    channels: int  # D_in
    outputs: int  # D_out
    heads: int  # N_h
    groups: int  # blocks of each W_h
    inner: int  # channels that each head mixes if values come first: D_h in all groups, or D_out
    factored: bool  # whether a second matrix follows those channels
    axes: tuple[Axis, ...]
    geometry: Geometry  # how images become keys
    dtype: torch.dtype  # of the images
    product_dtype: torch.dtype  # of their products: under autocast its own
    device: torch.device  # of the images

    @property
    def sizes(self) -> tuple[int, ...]:
        """Queries along each axis."""
        return tuple(len(axis.queries) for axis in self.axes)

    @property
    def queries(self) -> int:
        """Number of queries."""
        return math.prod(self.sizes)

    @property
    def keys(self) -> int:
        """Number of keys."""
        return math.prod([axis.keys for axis in self.axes])

    @property
    def itemsize(self) -> int:
        """Bytes of one number of the keys."""
        return self.dtype.itemsize

    @property
    def softmax_dtype(self) -> torch.dtype:
        """Dtype of scores and softmax: at least float32."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def line(self) -> int | None:
        """Number of the only axis with several queries or keys, 0 if there is none; None for images with more."""
        several = []
        for number, axis in enumerate(self.axes):
            if axis.keys > 1 or len(axis.queries) > 1:
                several.append(number)
        if len(several) > 1:
            return None
        return several[0] if several else 0

    @property
    def long_line(self) -> int | None:
        """Number of that axis if it has so many keys that the images are long sequences."""
        line = self.line
        return line if line is not None and self.axes[line].keys >= _LONG else None

    @property
    def fits(self) -> bool:
        """Whether the weights of all queries and keys may be in memory."""
        return self.weights(by_axis=False) * 4 <= _MOST_WEIGHTS * piece_bytes(self.device)

    @property
    def reads_scores(self) -> bool:
        """Whether the values of scores may decide: elsewhere than on a CPU only where there is no other way."""
        return not is_accelerator(self.device) or (self.long_line is not None and not self.fits)

    @property
    def waits(self) -> str:
        """What follows from reading scores, in words: nothing on a CPU."""
        if not is_accelerator(self.device):
            return ""
        return "; its scores are read, so the program waits and no CUDA graph holds it"

    def seconds(self, kernels: int, flops: float, moved: float) -> float:
        """Estimates the time of kernels, their operations and the bytes that they move on a GPU."""
        rate = _RATES.get(self.product_dtype, _FAST)
        return kernels * _START + flops / rate + moved / _BANDWIDTH

    def weights(self, *, by_axis: bool) -> int:
        """Counts the attention weights of all heads."""
        if not by_axis:
            return self.heads * self.queries * self.keys
        return self.heads * sum(len(axis.queries) * axis.keys for axis in self.axes)

    def mixing(self, channels: int, *, by_axis: bool) -> int:
        """Counts the operations of weighted means, along one axis after the other or over all pairs at once."""
        each = 2 * self.batch * self.heads * channels
        if not by_axis:
            return each * self.queries * self.keys
        pairs = 0
        for number in range(len(self.axes)):
            mixed = math.prod(self.sizes[: number + 1])
            pairs += mixed * math.prod([axis.keys for axis in self.axes[number:]])
        return each * pairs

    def products(self, pixels: int, inputs: int, outputs: int) -> int:
        """Counts the operations of one block-diagonal matrix for each head, at some pixels of each image."""
        return 2 * self.batch * pixels * (self.heads * inputs * outputs // self.groups)

    @property
    def maps(self) -> int:
        """Operations of all W_h at all queries."""
        return self.products(self.queries, self.channels, self.outputs)


@dataclass(frozen=True, eq=False, kw_only=True)
class Path(ABC):
    """A way to compute a layer on images of one size, with everything that does not depend on the images."""

    # "separable", "dense", "fourier" or "shift"; of a layer also "content" or "reference"
    name: str
    reason: str
    work: Work  # the call that it was made for; the number of images may differ
    # "weights" if pixels are mixed before W_h, "values" if after W_h, or after W_val
    order: str = "weights"
    leak: float = 0.0  # largest share of attention that is left out

    @property
    def bound(self) -> float:
        """Largest share of attention that is at a wrong key, or left out."""
        return self.leak

    @abstractmethod
    def cost(self) -> Cost:
        """Returns what a call costs."""

    @abstractmethod
    def attend(
        self,
        x: Float[Tensor, "batch channels *spatial"],
        maps: HeadMaps,
        bias: Float[Tensor, " outputs"] | None,
    ) -> Float[Tensor, "batch outputs *queries"]:
        """Computes the layer.

        Args:
            x: Images.
            maps: W_h.
            bias: Added to the output, or None.

        Returns:
            Output channels at each query.
        """


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ShiftPath(Path):
    """A convolution: every head looks at one pixel."""

    shifts: Shifts
    # scores of heads that learn: their gradient is zero, not missing
    unmoved: tuple[Tensor, ...] = ()

    def cost(self) -> Cost:
        """Counts the kernel that holds all heads."""
        work = self.work
        kernel = math.prod(self.shifts.window[1]) * work.channels * work.outputs // work.groups
        return Cost(2 * work.batch * work.queries * kernel, kernel * work.itemsize)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Convolves."""
        work = self.work
        return shift_attention(
            self.shifts,
            work.axes,
            work.geometry,
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
        return len(self.weights) == len(self.work.axes)

    def cost(self) -> Cost:
        """Counts the softmax, the means, and the matrices in the order of the path."""
        work, by_axis = self.work, self.by_axis
        memory = work.weights(by_axis=by_axis) * (4 + work.itemsize)
        if self.order == "weights":
            mixed = work.batch * work.channels * work.queries * work.itemsize
            memory += 3 * min(1 << 21, mixed)
        else:
            own = work.batch * work.heads * work.inner * (work.keys + work.queries)
            memory += own * work.itemsize
        return Cost(explicit_flops(work, self.order, by_axis=by_axis), memory)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Takes weighted means along each axis, before or after the matrices."""
        keys = pad_keys(x, self.work.geometry)
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
        return add_bias(y.view(*y.shape[:2], *self.work.sizes), bias)


def explicit_flops(work: Work, order: str, *, by_axis: bool) -> int:
    """Counts the operations with explicit weights.

    With the order "weights", weighted means of all channels come before W_h; with "values", each head's own channels
    come before weighted means of those. `by_axis` tells whether there is one softmax per axis.
    """
    softmax = 5 * work.weights(by_axis=by_axis)
    if order == "weights":
        return softmax + work.mixing(work.channels, by_axis=by_axis) + work.maps
    flops = softmax + work.products(work.keys, work.channels, work.inner)
    flops += work.mixing(work.inner, by_axis=by_axis)
    if work.factored:
        flops += work.products(work.queries, work.inner, work.outputs)
    return flops


def explicit_order(work: Work, *, by_axis: bool) -> str:
    """Returns which order is estimated to be faster: "weights" or "values" first."""
    values = explicit_flops(work, "values", by_axis=by_axis) * SLOWNESS["own channels"]
    return "values" if values < explicit_flops(work, "weights", by_axis=by_axis) else "weights"


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class BandPath(Path):
    """The keys that matter to a long sequence: convolutions and means of blocks."""

    bands: Bands

    def cost(self) -> Cost:
        """Counts the bands, and keeps the memory of the largest."""
        return band_cost(self.work, self.bands)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Attends along the only axis."""
        work = self.work
        assert work.line is not None
        keys = pad_keys(x, work.geometry).flatten(2)
        y = band_attention(self.bands, work.axes[work.line], keys, maps.whole(), maps.groups)
        return add_bias(y.view(*y.shape[:2], *work.sizes), bias)


def band_cost(work: Work, bands: Bands) -> Cost:
    """Returns the cost of convolutions and means of the keys that matter, for images that are lines."""
    flops = numbers = 0
    for band in bands.parts:
        operations, held = _cost_of_one_band(work, band)
        flops += operations
        numbers = max(numbers, held)
    return Cost(flops, numbers * work.itemsize + 5 * bands.scores.nbytes // 4)


def _cost_of_one_band(work: Work, band: Band) -> tuple[int, int]:
    """Returns the operations of a band, and how many numbers are in memory."""
    assert work.line is not None
    heads, step = len(band.heads), work.axes[work.line].queries.step
    matrix = work.channels * work.outputs // work.groups
    ends = (band.before, band.after)
    inside = work.batch * (work.queries - sum(count for count, _ in ends))
    if band.is_kernel(work.channels, matrix, step):
        flops = 2 * inside * band.taps * matrix + 2 * heads * band.taps * matrix
        numbers = inside * (step * work.channels + 2 * work.outputs)
    else:
        block = band.block(step)
        seen = work.channels * (step * (block - 1) + band.taps)
        flops = 2 * inside * heads * (seen + matrix)
        numbers = inside * (seen // block + heads * 2 * work.channels + work.outputs)
    for count, keys in ends:
        means = 2 * work.batch * (keys * work.channels + matrix)
        flops += heads * count * (5 * keys + means)
        numbers += heads * count * (2 * keys + work.batch * work.channels)
    return flops, numbers


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class FourierPath(Path):
    """Fast Fourier transforms."""

    filters: Filters

    def cost(self) -> Cost:
        """Counts transforms, then W_h."""
        flops, memory = transform_cost(self.work)
        return Cost(flops + self.work.maps, memory)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Filters the images."""
        keys = pad_keys(x, self.work.geometry)
        y = fourier_attention(self.filters, self.work.axes, keys, maps.whole(), maps.groups)
        return add_bias(y, bias)


def transform_cost(work: Work) -> Cost:
    """Returns the cost of transforms of the images, products with the heads' filters, and transforms back."""
    size = math.prod([quick_length(2 * axis.keys - 1) for axis in work.axes])
    pairs = work.batch * (work.channels + 1) // 2
    one = 5 * size * max(1, round(math.log2(size)))
    flops = one * pairs * (work.heads + 1) + 6 * size * pairs * work.heads
    memory = 16 * size * work.heads + 3 * (5 << 19) + work.heads * work.queries * 8
    return Cost(flops, memory)


def plan(work: Work, encoding: Encoding, impl: str, dropout: float) -> Path:
    """Chooses a path and computes what it needs from the encoding, to which gradients flow back.

    Args:
        work: The call.
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
    with without_autocast(work.device) if off else nullcontext():
        if impl == "dense" or dropout:
            reason = "dropout drops single weights, so each is computed"
            if impl == "dense":
                reason = REQUESTED
            return _dense(_table(encoding, work), work, reason, dropout)
        if impl == "fourier":
            return _fourier(_table(encoding, work), work, REQUESTED)
        if impl != "separable" and isinstance(encoding, Shift):
            shifts = _fixed_shifts(encoding, work)
            if impl == "shift" or _is_compact(shifts):
                reason = "each head looks at one displacement: a convolution"
                if impl == "shift":
                    reason = REQUESTED
                return ShiftPath(name="shift", reason=reason, work=work, shifts=shifts)
        if isinstance(encoding, AxisAdditiveEncoding):
            return _by_axis(encoding, work, impl)
        return _by_pair(encoding, work)


def _by_axis(encoding: AxisAdditiveEncoding, work: Work, impl: str) -> Path:
    """Takes one softmax per axis, or a convolution if the heads turn out to be hard."""
    tables = encoding.axis_tables(work.axes, work.softmax_dtype, work.device)
    if impl == "shift" or (impl == "auto" and work.reads_scores):
        path = _hard(tables, work, impl)
        if path is not None:
            return path
    reason = "the scores are a sum over axes: one softmax per axis"
    if impl == "separable":
        reason = REQUESTED
    if work.long_line is not None and work.reads_scores:
        path = _long(encoding, work, tables[work.long_line], reason, impl)
        if path is not None:
            return path
    weights = []
    for table, axis in zip(tables, work.axes, strict=True):
        weights.append(position_weights(table, (axis,)))
    if _joins_axes(work):
        weights = [join_axes(weights)]
        reason += ", multiplied to those of all pairs, for two large products"
    return ExplicitPath(
        name="separable",
        reason=reason,
        work=work,
        order=explicit_order(work, by_axis=True),
        weights=tuple(weights),
    )


def _joins_axes(work: Work) -> bool:
    """Tells whether on a GPU products over all pairs take less time than one for each axis, whose means are moved."""
    if not is_accelerator(work.device) or work.line is not None or not work.fits:
        return False
    pairs = work.mixing(work.channels, by_axis=False)
    joined = work.seconds(3, pairs, 12 * work.weights(by_axis=False))
    means = work.batch * work.heads * work.channels * max(work.queries, work.keys)
    moved = 4 * means * work.product_dtype.itemsize
    apart = work.seconds(8, work.mixing(work.channels, by_axis=True), moved)
    return joined <= apart


def _by_pair(encoding: Encoding, work: Work) -> Path:
    """Computes scores that are no sum over axes: of few keys, by transforms, or of all pairs."""
    table = _table(encoding, work)
    if work.long_line is not None and work.reads_scores:
        path = _long(encoding, work, table.flatten(1), "one axis", "auto")
        if path is not None:
            return path
    if _transforms(work):
        reason = "the scores are not a sum over axes, and the image is large enough for transforms"
        return _fourier(table, work, reason)
    return _dense(table, work, "the scores are not a sum over axes, and the image is small")


def _transforms(work: Work) -> bool:
    """Tells whether transforms take less time than all weights."""
    pairs = work.mixing(work.channels, by_axis=False)
    if not is_accelerator(work.device):
        return transform_cost(work).flops * SLOWNESS["transforms"] < pairs
    size = math.prod([quick_length(2 * axis.keys - 1) for axis in work.axes])
    moved = 6 * 16 * size * work.batch * work.channels * (work.heads + 1)
    transformed = work.seconds(_SURVEY * work.heads, 0, moved)
    explicit = work.seconds(3, pairs, 12 * work.weights(by_axis=False))
    return not work.fits or transformed < explicit


def _table(encoding: Encoding, work: Work) -> Float[Tensor, "heads *displacements"]:
    return encoding.table(work.axes, work.softmax_dtype, work.device)


def _dense(table: Tensor, work: Work, reason: str, dropout: float = 0.0) -> Path:
    """Computes explicit weights for all pairs of queries and keys."""
    return ExplicitPath(
        name="dense",
        reason=reason,
        work=work,
        order=explicit_order(work, by_axis=False),
        weights=(position_weights(table, work.axes),),
        dropout=dropout,
    )


def _fourier(table: Tensor, work: Work, reason: str) -> Path:
    """Computes by transforms, or by explicit weights if too many queries would lose digits."""
    if not can_be_read(table):
        reason = "a compiled graph cannot read the values that transforms depend on"
        return _dense(table, work, reason)
    reason += work.waits
    filters = fourier_filters(table, work.axes, work.dtype)
    weak = filters.weak_share
    if weak > _WEAK:
        lost = f"transforms would lose digits at {weak:.0%} of the queries"
        return _dense(table, work, f"{lost}, so all are computed exactly")
    if weak:
        reason += f"; the {weak:.1%} of the queries that would lose digits are computed exactly"
    return FourierPath(name="fourier", reason=reason, work=work, filters=filters)


def _long(encoding: Encoding, work: Work, table: Tensor, reason: str, impl: str) -> Path | None:
    """Computes a long sequence without weights for every pair: in bands, or by transforms if heads are wide."""
    if not can_be_read(table):
        return None
    assert work.long_line is not None
    bands = find_bands(table, work.axes[work.long_line], work.dtype)
    pairs = explicit_flops(work, "weights", by_axis=True)
    banded = pairs if bands is None else band_cost(work, bands).flops
    if impl == "auto" and work.softmax_dtype == torch.float32:
        transforms = transform_cost(work).flops + work.maps
        if transforms * SLOWNESS["long transforms"] < min(pairs, banded):
            table = _table(encoding, work)
            return _fourier(table, work, "the sequence is long and heads are wide")
    if bands is None or banded >= pairs:
        return None
    reason = f"{reason}, in bands of up to {bands.widest} displacements{work.waits}"
    return BandPath(name="separable", reason=reason, work=work, leak=bands.leak, bands=bands)


def _hard(tables: Sequence[Tensor], work: Work, impl: str) -> Path | None:
    """Returns the convolution that heads are if each looks at one pixel; None if they are soft."""
    most = torch.finfo(work.softmax_dtype).eps * _HARD
    readable = all(map(can_be_read, tables))
    shifts = find_shifts(tables, work.axes, most) if readable else None
    if shifts is None:
        if impl != "shift" or work.device.type == "meta":  # which has shapes, and no numbers
            return None
        reason = "a compiled graph, or torch.vmap over the parameters, cannot look at them"
        if readable:
            reason = f"more than {most:.2g} of a head's attention falls outside one pixel"
        raise ArgumentError(f"impl='shift' needs hard heads, but {reason}; use impl='auto'")
    learning = tuple(table for table in tables if table.requires_grad)
    reason = REQUESTED + work.waits
    if impl != "shift":
        if (shifts.leak and learning) or not _is_compact(shifts):
            return None
        rest = f" (all but {shifts.leak:.2g} of its attention)" if shifts.leak else ""
        reason = f"each head looks at one pixel{rest}: a convolution"
    return ShiftPath(
        name="shift",
        reason=reason,
        work=work,
        leak=shifts.leak,
        shifts=shifts,
        unmoved=learning,
    )


def _fixed_shifts(encoding: Shift, work: Work) -> Shifts:
    """Returns the displacements of hard heads, limited to those that lead to a key."""
    # Beyond them every query looks at the same nearest key.
    offsets = []
    for displacement in encoding.displacements:
        limited = []
        for along, axis in zip(displacement, work.axes, strict=True):
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
