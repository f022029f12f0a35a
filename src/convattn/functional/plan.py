"""How a call without content is computed: a path, chosen from sizes, mode, dtype and the class of the encoding.

`choose` is pure: it reads no parameter. `make_path` computes the scores and looks at them, and is the only place where
their values decide: heads may turn out hard, a long sequence may need few keys, and transforms may lose digits::

    Work  →  choose  →  make_path  →  path.attend(x, maps, bias)

    shift       every head looks at one pixel: a convolution
    separable   one softmax per axis; of long sequences only the keys that matter
    dense       one softmax over all pairs of queries and keys
    fourier     any score of a displacement: fast transforms

Costs follow from sizes alone. A multiplication and an addition count as two operations; bytes are working memory beyond
input, output and parameters. Heads are assumed to see many pixels: those that see few take fewer operations.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from convattn.encodings import AxisAdditiveEncoding, Encoding, Shift
from convattn.errors import ArgumentError
from convattn.functional.bands import Bands, band_attention, find_bands
from convattn.functional.content import PIECE_BYTES
from convattn.functional.fourier import Filters, fourier_attention, fourier_filters, quick_length
from convattn.functional.reference import HeadMaps, pad_keys, position_weights
from convattn.functional.separable import separable_attention, values_first_attention
from convattn.functional.shift import Shifts, shift_attention
from convattn.functional.torch_modes import autocasts, without_autocast
from convattn.grid import Axis, Geometry

SLOWNESS = {"transforms": 8.0, "long transforms": 20.0, "own channels": 4.0}
"""How many times longer an operation takes than in a large matrix product: in fast Fourier transforms, and if each head
mixes channels of its own. Measured on two cores (float32); only ratios of this size decide between paths. Those of
a long sequence leave the cache: 16 times with 16 channels and 28 times with 64 as long as in bands (one core)."""


class Cost(NamedTuple):
    """Operations and working memory."""

    flops: int  # floating-point operations
    bytes: int  # working memory


@dataclass(frozen=True)
class Work:
    """The sizes of one call of an attention layer."""

    batch: int
    channels: int  # D_in
    outputs: int  # D_out
    heads: int  # N_h
    groups: int  # blocks of each W_h
    inner: int  # channels that each head mixes if values come first: D_h in all groups, or D_out
    factored: bool  # whether a second matrix follows those channels
    axes: tuple[Axis, ...]
    geometry: Geometry  # how images become keys
    dtype: torch.dtype  # of the images
    device: torch.device  # of the images

    @property
    def queries(self) -> tuple[int, ...]:
        """Queries along each axis."""
        return tuple(len(axis.queries) for axis in self.axes)

    @property
    def keys(self) -> tuple[int, ...]:
        """Keys along each axis."""
        return tuple(axis.keys for axis in self.axes)

    @property
    def line(self) -> int | None:
        """Number of the only axis with several queries or keys, 0 if there is none; None for images with more."""
        several = [
            number
            for number, axis in enumerate(self.axes)
            if axis.keys > 1 or len(axis.queries) > 1
        ]
        return None if len(several) > 1 else (*several, 0)[0]

    @property
    def itemsize(self) -> int:
        """Bytes of one number of the keys."""
        return self.dtype.itemsize

    @property
    def softmax_dtype(self) -> torch.dtype:
        """Dtype of scores and softmax: at least float32."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def pairs(self) -> int:
        """Queries times keys."""
        return math.prod(self.queries) * math.prod(self.keys)

    @property
    def maps(self) -> int:
        """Operations of all W_h at all queries."""
        per_query = self.heads * self.channels * self.outputs // self.groups
        return 2 * self.batch * math.prod(self.queries) * per_query

    def mixing(self, channels: int, *, by_axis: bool) -> int:
        """Counts the operations of weighted means, along one axis after the other or over all pairs at once."""
        each = 2 * self.batch * self.heads * channels
        if not by_axis:
            return each * self.pairs
        total = 0
        for axis in range(len(self.keys)):
            total += math.prod(self.queries[: axis + 1]) * math.prod(self.keys[axis:])
        return each * total

    def weights(self, *, by_axis: bool) -> int:
        """Counts the attention weights of all heads."""
        along = (
            sum(q * k for q, k in zip(self.queries, self.keys, strict=True))
            if by_axis
            else self.pairs
        )
        return self.heads * along

    def flops(self, order: str, *, by_axis: bool) -> int:
        """Counts the operations with explicit weights.

        Args:
            order: "weights" takes weighted means of all channels, then W_h; "values" takes each head's own channels,
                then weighted means of those.
            by_axis: Whether there is one softmax per axis.

        Returns:
            Floating-point operations.
        """
        weights = 5 * self.weights(by_axis=by_axis)
        if order == "weights":
            return weights + self.mixing(self.channels, by_axis=by_axis) + self.maps
        per_key = self.heads * self.inner * self.channels // self.groups
        flops = (
            weights
            + 2 * self.batch * math.prod(self.keys) * per_key
            + self.mixing(self.inner, by_axis=by_axis)
        )
        if self.factored:
            per_query = self.heads * self.inner * self.outputs // self.groups
            flops += 2 * self.batch * math.prod(self.queries) * per_query
        return flops

    def explicit(self, order: str, *, by_axis: bool) -> Cost:
        """Returns the cost of explicit weights; the arguments are those of `flops`."""
        working = self.weights(by_axis=by_axis) * (4 + self.itemsize)
        if order == "weights":
            working += 3 * min(
                1 << 21, self.batch * self.channels * math.prod(self.queries) * self.itemsize
            )
        else:
            own = (
                self.batch
                * self.heads
                * self.inner
                * (math.prod(self.keys) + math.prod(self.queries))
            )
            working += own * self.itemsize
        return Cost(self.flops(order, by_axis=by_axis), working)

    def order(self, *, by_axis: bool) -> str:
        """Returns which order is estimated to be faster: "weights" or "values" first."""
        work = (
            self if isinstance(self.batch, int) else replace(self, batch=1)
        )  # an export's symbol, not to be pinned
        values, weights = (work.flops(order, by_axis=by_axis) for order in ("values", "weights"))
        return "values" if values * SLOWNESS["own channels"] < weights else "weights"

    def bands(self, bands: Bands) -> Cost:
        """Returns the cost of convolutions and means of the keys that matter, for images that are lines."""
        assert self.line is not None
        queries, step = math.prod(self.queries), self.axes[self.line].queries.step
        matrix = self.channels * self.outputs // self.groups
        flops = working = 0
        for band in bands.parts:
            heads, block, ends = len(band.heads), band.block(step), (band.before, band.after)
            inside = queries - sum(count for count, _ in ends)
            if band.is_kernel(self.channels, matrix, step):
                flops += (
                    2 * self.batch * inside * band.taps * matrix + 2 * heads * band.taps * matrix
                )
                numbers = self.batch * inside * (step * self.channels + 2 * self.outputs)
            else:
                seen = self.channels * (step * (block - 1) + band.taps)
                flops += 2 * self.batch * inside * heads * (seen + matrix)
                numbers = (
                    self.batch * inside * (seen // block + heads * 2 * self.channels + self.outputs)
                )
            for count, keys in ends:
                flops += (
                    heads * count * (5 * keys + 2 * self.batch * (keys * self.channels + matrix))
                )
                numbers += heads * count * (2 * keys + self.batch * self.channels)
            working = max(working, numbers)
        return Cost(flops, working * self.itemsize + 5 * bands.scores.nbytes // 4)

    def transforms(self) -> Cost:
        """Returns the cost of transforms of the images, products with the heads' filters, and transforms back."""
        lengths = [quick_length(2 * k - 1) for k in self.keys]
        size, pairs = math.prod(lengths), self.batch * (self.channels + 1) // 2
        one = 5 * size * max(1, round(math.log2(size)))
        flops = one * pairs * (self.heads + 1) + 6 * size * pairs * self.heads
        working = 16 * size * self.heads + 3 * (5 << 19) + self.heads * math.prod(self.queries) * 8
        return Cost(flops, working)

    def fourier(self) -> Cost:
        """Returns the cost of the Fourier path: transforms, then W_h."""
        flops, working = self.transforms()
        return Cost(flops + self.maps, working)

    def shift(self, taps: int) -> Cost:
        """Returns the cost of a convolution with so many taps."""
        kernel = taps * self.channels * self.outputs // self.groups
        return Cost(2 * self.batch * math.prod(self.queries) * kernel, kernel * self.itemsize)

    def reference(self) -> Cost:
        """Returns the cost of explicit weights and explicit means of all heads."""
        flops = self.flops("weights", by_axis=False)
        means = self.batch * self.heads * self.channels * math.prod(self.queries)
        return Cost(
            flops, self.weights(by_axis=False) * (8 + self.itemsize) + 2 * means * self.itemsize
        )

    def content(self, key_width: int, displacements: int) -> Cost:
        """Returns the cost of content scores, some images or rows at a time, with features of so many displacements."""
        queries, keys = math.prod(self.queries), math.prod(self.keys)
        row = queries // next((count for count in self.queries if count > 1), 1)
        at_once = min(queries, max(row, PIECE_BYTES // (8 * self.heads * keys)))
        working = (
            12 * self.heads * at_once * keys
            + self.heads * (queries + keys) * key_width * self.itemsize
        )
        return Cost(self._with_content(key_width, displacements), working)

    def explicit_content(self, key_width: int, *, features: bool) -> Cost:
        """Returns the cost of content scores with the weights of all images, and features for every query and key."""
        queries, keys = math.prod(self.queries), math.prod(self.keys)
        flops = self._with_content(key_width, keys if features else 0)
        numbers = self.batch * (
            3 * self.weights(by_axis=False) + self.heads * (queries + keys) * key_width
        )
        numbers += self.heads * self.pairs * key_width if features else 0
        return Cost(flops, numbers * max(4, self.itemsize))

    def flex(self, key_width: int, displacements: int, *, fused: bool) -> Cost:
        """Returns the cost of FlexAttention: products of queries with features of displacements, then all pairs."""
        queries, keys = math.prod(self.queries), math.prod(self.keys)
        weights = 0 if fused else self.batch * self.weights(by_axis=False) * 12
        numbers = queries * (key_width + self.channels) + keys * key_width
        tables = queries * displacements * max(4, self.itemsize)
        working = weights + self.batch * self.heads * (numbers * self.itemsize + tables)
        return Cost(self._with_content(key_width, displacements), working)

    def _with_content(self, width: int, displacements: int) -> int:
        """Counts the operations of content attention with queries and keys of a width."""
        queries, keys = math.prod(self.queries), math.prod(self.keys)
        products = self.batch * width * (self.channels * (queries + keys) + queries * keys)
        position = self.batch * queries * displacements * width
        weights = 5 * self.batch * self.weights(by_axis=False)
        return (
            2 * self.heads * (products + position)
            + weights
            + self.mixing(self.channels, by_axis=False)
            + self.maps
        )


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

_LONG = 512
"""Number of keys from which a sequence is long: all weights then cost more than finding those that matter."""


@final
@dataclass(frozen=True, eq=False)
class Path:
    """A way to compute a layer on images of one size, with everything that does not depend on the images."""

    name: str  # "separable", "dense", "fourier" or "shift"
    reason: str
    work: Work  # the call that it was made for; the number of images may differ
    # Weights along each axis ("separable") or of all pairs ("dense"), in at least float32, or what another path needs
    prepared: tuple[Tensor, ...] | Bands | Filters | Shifts
    dropout: float = 0.0  # probability of dropping a weight
    unmoved: tuple[
        Tensor, ...
    ] = ()  # scores of hard heads that learn: their gradient is zero, not missing

    @property
    def order(self) -> str:
        """What comes first: "weights" if pixels are mixed before they are multiplied with W_h, "values" if after."""
        if isinstance(self.prepared, Shifts | Bands | Filters):
            return "weights"
        return self.work.order(by_axis=self.name == "separable")

    @property
    def leak(self) -> float:
        """Largest share of attention that is left out."""
        return self.prepared.leak if isinstance(self.prepared, Bands | Shifts) else 0.0

    def cost(self) -> Cost:
        """Returns what a call costs."""
        if isinstance(self.prepared, Shifts):
            return self.work.shift(math.prod(self.prepared.window[1]))
        if isinstance(self.prepared, Bands):
            return self.work.bands(self.prepared)
        if isinstance(self.prepared, Filters):
            return self.work.fourier()
        return self.work.explicit(self.order, by_axis=self.name == "separable")

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
        work, prepared = self.work, self.prepared
        if isinstance(prepared, Shifts):
            whole = maps.whole()
            return shift_attention(
                prepared,
                work.axes,
                work.geometry,
                x,
                whole,
                maps.groups,
                bias,
                unmoved=self.unmoved,
            )
        keys = pad_keys(x, work.geometry)
        if isinstance(prepared, Bands):
            assert work.line is not None
            y = band_attention(
                prepared, work.axes[work.line], keys.flatten(2), maps.whole(), maps.groups
            )
        elif isinstance(prepared, Filters):
            y = fourier_attention(prepared, work.axes, keys, maps.whole(), maps.groups)
        else:
            y = self._attend_with(prepared, keys.flatten(2) if self.name == "dense" else keys, maps)
        y = y.view(*y.shape[:2], *work.queries)
        return y if bias is None else y + bias.to(y.dtype).view(-1, *(1,) * len(work.axes))

    def _attend_with(self, weights: Sequence[Tensor], keys: Tensor, maps: HeadMaps) -> Tensor:
        """Computes the layer from explicit weights, without the bias."""
        if self.dropout:
            weights = [nn.functional.dropout(weight, self.dropout) for weight in weights]
        if self.order == "values":
            same = [weight.to(keys.dtype) for weight in weights]
            return values_first_attention(same, keys, maps.value, maps.output, maps.groups)
        return separable_attention(weights, keys, maps.whole(), maps.groups)


def choose(work: Work, encoding: Encoding, impl: str, dropout: float) -> tuple[str, str]:
    """Chooses a path from sizes, mode, dtype and the encoding's class, without reading a parameter.

    Args:
        work: The call.
        encoding: Its class decides, and the displacements of a `Shift`, which are fixed.
        impl: The requested path, or "auto".
        dropout: Probability of dropping a weight in this call.

    Returns:
        Name of the path, and why it was chosen. `make_path` may find a better one when it sees the scores.
    """
    if impl == "dense" or dropout:
        return (
            "dense",
            REQUESTED if impl == "dense" else "dropout drops single weights, so each is computed",
        )
    if impl in ("fourier", "separable"):
        return impl, REQUESTED
    if isinstance(encoding, Shift) and (
        impl == "shift" or _is_compact(_fixed_shifts(encoding, work))
    ):
        return (
            "shift",
            REQUESTED if impl == "shift" else "each head looks at one displacement: a convolution",
        )
    if isinstance(encoding, AxisAdditiveEncoding):
        return "separable", "the scores are a sum over axes: one softmax per axis"
    if work.transforms().flops * SLOWNESS["transforms"] < work.mixing(work.channels, by_axis=False):
        return (
            "fourier",
            "the scores are not a sum over axes, and the image is large enough for transforms",
        )
    return "dense", "the scores are not a sum over axes, and the image is small"


def make_path(work: Work, encoding: Encoding, impl: str, dropout: float) -> Path:
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
    name, reason = choose(work, encoding, impl, dropout)
    with without_autocast(work.device) if autocasts(work.device) else nullcontext():
        if name == "shift":
            assert isinstance(encoding, Shift)
            return Path(name, reason, work, _fixed_shifts(encoding, work))
        if name == "separable":
            assert isinstance(encoding, AxisAdditiveEncoding)
            return _by_axis(encoding, work, reason, impl)
        table = _table(encoding, work)
        if _is_long(work) and impl == "auto" and not dropout:
            path = _long(encoding, work, table.flatten(1), "one axis", impl)
            if path is not None:
                return path
        if name == "fourier":
            return _fourier(table, work, reason)
        return _dense(table, work, reason, dropout)


def can_be_read(tensor: Tensor) -> bool:
    """Tells whether a computation may depend on the values of a tensor."""
    # Not on the device "meta", while compiling, or under `torch.vmap`, where each member of the batch has other values.
    if tensor.is_meta or torch.compiler.is_compiling():
        return False
    return (
        torch.func.debug_unwrap(tensor, recurse=True).ndim == tensor.ndim
    )  # vmap hides the axis it maps over


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
        at = scores.argmax(-1, keepdim=True)
        inside = (
            torch.softmax(scores, -1)
            .scatter(-1, at, 0.0 * scores.amax(-1, keepdim=True))
            .sum(-1)
            .amax()
            .cpu()
        )
        if not leak + inside <= most:
            return None
        along = at + axis.lowest
        last, first = (
            _leak_at_end(scores, along, axis),
            _leak_at_end(scores.flip(-1), -along, axis.mirrored),
        )
        leak = leak + torch.stack([inside.double(), last.double(), first.double()]).amax()
        if not leak <= most:
            return None
        offsets.append(along[:, 0].tolist())
    return Shifts(tuple(zip(*offsets, strict=True)), leak.item())


def _leak_at_end(
    scores: Float[Tensor, "heads displacements"], offsets: Int[Tensor, "heads 1"], axis: Axis
) -> Float[Tensor, ""]:
    """Bounds the leak of queries whose displacement leads out after the last key, which they should look at."""
    first, stop = (
        axis.keys - 1,
        int(offsets.max()) - axis.lowest,
    )  # displacements to the last key are at first:stop
    if first >= stop:
        return torch.zeros((), device="cpu")
    nearest, lower = scores[:, first:stop], scores[:, :first]
    if first:  # all that lies below, as its largest score divided by the softmax there: quicker than its logarithm
        below = lower.amax(-1, keepdim=True) - torch.softmax(lower, -1).amax(-1, keepdim=True).log()
        lower = torch.cat([below, nearest], -1).logcumsumexp(-1)[:, :-1]
    else:
        lower = nn.functional.pad(nearest.logcumsumexp(-1)[:, :-1], (1, 0), value=-math.inf)
    displacements = axis.displacements(scores.device)[first:stop]
    leads_out = (displacements < offsets)[:, :: axis.queries.step]
    return (
        (lower - nearest).exp()[:, :: axis.queries.step].masked_fill(~leads_out, 0.0).amax().cpu()
    )


def _fixed_shifts(encoding: Shift, work: Work) -> Shifts:
    """Returns the displacements of hard heads, limited to those that lead to a key."""
    # Beyond them every query looks at the same nearest key.
    limited = (
        tuple(
            min(max(along, axis.lowest), axis.highest)
            for along, axis in zip(displacement, work.axes, strict=True)
        )
        for displacement in encoding.displacements
    )
    return Shifts(tuple(limited), leak=0.0)


def _is_compact(shifts: Shifts) -> bool:
    """Tells whether the kernel that holds all heads has few taps beside them."""
    return math.prod(shifts.window[1]) <= _TAPS * len(shifts.offsets)


def _by_axis(encoding: AxisAdditiveEncoding, work: Work, reason: str, impl: str) -> Path:
    """Takes one softmax per axis, or a convolution if the heads turn out to be hard."""
    tables = encoding.axis_tables(work.axes, work.softmax_dtype, work.device)
    if impl != "separable" and (path := _hard(tables, work, impl)) is not None:
        return path
    if (
        _is_long(work)
        and (path := _long(encoding, work, tables[work.line or 0], reason, impl)) is not None
    ):
        return path
    weights = tuple(
        position_weights(table, (axis,)) for table, axis in zip(tables, work.axes, strict=True)
    )
    return Path("separable", reason, work, weights)


def _hard(tables: Sequence[Tensor], work: Work, impl: str) -> Path | None:
    """Returns the convolution that heads are if each looks at one pixel; None if they are soft."""
    most = torch.finfo(work.softmax_dtype).eps * _HARD
    readable = all(map(can_be_read, tables))
    shifts = find_shifts(tables, work.axes, most) if readable else None
    if shifts is None:
        if impl != "shift" or work.device.type == "meta":  # which has shapes, and no numbers
            return None
        reason = (
            f"more than {most:.2g} of a head's attention falls outside one pixel"
            if readable
            else "a compiled graph, or torch.vmap over the parameters, cannot look at them"
        )
        raise ArgumentError(f"impl='shift' needs hard heads, but {reason}; use impl='auto'")
    learning = tuple(table for table in tables if table.requires_grad)
    if impl == "shift":
        return Path("shift", REQUESTED, work, shifts, unmoved=learning)
    if (shifts.leak and learning) or not _is_compact(shifts):
        return None
    rest = f" (all but {shifts.leak:.2g} of its attention)" if shifts.leak else ""
    return Path(
        "shift",
        f"each head looks at one pixel{rest}: a convolution",
        work,
        shifts,
        unmoved=learning,
    )


def _is_long(work: Work) -> bool:
    """Tells whether the images are long sequences, or long lines of one row or column."""
    return work.line is not None and work.axes[work.line].keys >= _LONG


def _long(encoding: Encoding, work: Work, table: Tensor, reason: str, impl: str) -> Path | None:
    """Computes a long sequence without weights for every pair: in bands, or by transforms if heads are wide."""
    if not can_be_read(table):
        return None
    assert work.line is not None
    bands = find_bands(table, work.axes[work.line], work.dtype)
    pairs = work.flops("weights", by_axis=True)
    banded = pairs if bands is None else work.bands(bands).flops
    transforms = work.fourier().flops * SLOWNESS["long transforms"]
    if work.softmax_dtype == torch.float32 and impl == "auto" and transforms < min(pairs, banded):
        return _fourier(_table(encoding, work), work, "the sequence is long and heads are wide")
    if bands is None or banded >= pairs:
        return None
    return Path(
        "separable", f"{reason}, in bands of up to {bands.widest} displacements", work, bands
    )


def _dense(table: Tensor, work: Work, reason: str, dropout: float = 0.0) -> Path:
    """Computes explicit weights for all pairs of queries and keys."""
    return Path("dense", reason, work, (position_weights(table, work.axes),), dropout)


def _fourier(table: Tensor, work: Work, reason: str) -> Path:
    """Computes by transforms, or by explicit weights if too many queries would lose digits."""
    if not can_be_read(table):
        return _dense(
            table, work, "a compiled graph cannot read the values that transforms depend on"
        )
    filters = fourier_filters(table, work.axes, work.dtype)
    if filters.weak_share > _WEAK:
        lost = f"transforms would lose digits at {filters.weak_share:.0%} of the queries"
        return _dense(table, work, f"{lost}, so all are computed exactly")
    if filters.weak_share:
        reason += f"; the {filters.weak_share:.1%} of the queries that would lose digits are computed exactly"
    return Path("fourier", reason, work, filters)


def _table(encoding: Encoding, work: Work) -> Tensor:
    return encoding.table(work.axes, work.softmax_dtype, work.device)
