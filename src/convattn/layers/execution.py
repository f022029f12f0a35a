"""How a layer computes: the choice of a path, what it makes before it sees an image, and the call."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from convattn.encodings import AxisAdditiveEncoding, Shift
from convattn.errors import ArgumentError
from convattn.functional import (
    Bands,
    Filters,
    GridAttention,
    GridSizes,
    Shifts,
    band_attention,
    find_bands,
    find_head_grid,
    find_shifts,
    fourier_attention,
    fourier_filters,
    grid_attention,
    pad_keys,
    position_weights,
    product_attention,
    shift_attention,
    values_first_attention,
)
from convattn.functional.derivatives import can_be_read, needs_own_operations
from convattn.functional.plan import SLOWNESS
from convattn.grid import Axis
from convattn.layers.call import Call

__all__ = ["Prepared", "compute", "prepare"]

_HARD = 1 / 8
"""Share of the rounding of the softmax's dtype that a hard head may leak to other pixels."""

_WEAK = 1 / 2
"""Share of queries that may be computed exactly beside transforms; with more of them, all are."""

_LONG = 512
"""Keys from which on a sequence is long: weights of all pairs then cost more than finding those that matter."""


class Prepared(NamedTuple):
    """A path, and what it makes of the encoding alone.

    Attributes:
        path: Name of the path.
        order: "weights" or "values" first.
        reason: Why this path.
        made: Weights along each axis, those of a grid of heads, bands, filters, or shifts.
        unmoved: Scores of hard heads that learn: their gradient is zero, not missing.
    """

    path: str
    order: str
    reason: str
    made: list[Tensor] | GridAttention | Bands | Filters | Shifts
    unmoved: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of what was made."""
        if isinstance(self.made, GridAttention):
            return self.made.nbytes
        return sum(part.nbytes for part in tree_leaves(self.made) if isinstance(part, Tensor))

    @property
    def leak(self) -> float:
        """Largest share of attention that the path leaves out."""
        return self.made.leak if isinstance(self.made, Shifts | Bands) else 0.0


def prepare(call: Call) -> Prepared:
    """Chooses the path and makes what does not depend on the images.

    Args:
        call: What is to be computed.

    Returns:
        The path and its weights; gradients flow back to the encoding.

    Raises:
        ArgumentError: The shift path was demanded of heads that are not hard.
    """
    if call.impl == "dense":
        return _dense(call, "demanded")
    if call.dropout:
        return _dense(call, "single weights are dropped, so they are made one by one")
    if call.impl == "fourier":
        return _fourier(call, "demanded")
    if isinstance(call.encoding, AxisAdditiveEncoding):
        return _fixed(call) or _by_axis(call, call.encoding)
    return (_is_long(call) and _long(call, _table(call), "one axis")) or _of_pairs(call)


def _of_pairs(call: Call) -> Prepared:
    """Prepares weights of all pairs, or transforms."""
    transforms = call.work.transforms().flops * SLOWNESS["transforms"]
    if transforms < call.work.mixing(call.work.channels, by_axis=False):
        return _fourier(call, "the scores are no sum over axes, and the image is large enough for transforms")
    return _dense(call, "the scores are no sum over axes, and the image is small")


def compute(call: Call, prepared: Prepared, x: Tensor) -> Tensor:
    """Computes the layer's output, bias included.

    Args:
        call: As given to `prepare`.
        prepared: What it returned.
        x: Images.

    Returns:
        (batch, outputs, *queries).
    """
    made, groups = prepared.made, call.work.groups
    if isinstance(made, Shifts):
        maps = call.maps()
        if prepared.unmoved and not needs_own_operations(maps):
            maps = _NoGradient.apply(maps, *prepared.unmoved)
        return shift_attention(made, call.axes, call.geometry, x, maps, groups, call.bias)
    maps = call.maps()
    if isinstance(made, GridAttention) and not _needs_products(x, maps, call.bias):
        return made(x, maps, groups, call.bias)
    keys, order = pad_keys(x, call.geometry), prepared.order
    if isinstance(made, GridAttention):
        keys = keys if made.grid.geometry is not None else x
        made, order = made.grid.by_head(len(call.axes)), call.work.order(by_axis=True)
    if isinstance(made, Bands):
        y = band_attention(made, call.axes[0], keys, maps, groups)
    elif isinstance(made, Filters):
        y = fourier_attention(made, call.axes, keys, maps, groups)
    else:
        flat = keys.flatten(2) if prepared.path == "dense" else keys
        dropped = [nn.functional.dropout(weight, call.dropout) for weight in made] if call.dropout else made
        weights = [weight.to(keys.dtype) for weight in dropped]
        if order == "values":
            y = values_first_attention(weights, flat, call.value, call.output, groups)
        else:
            y = product_attention(weights, flat, maps, groups)
    y = y.view(*y.shape[:2], *(len(axis.queries) for axis in call.axes))
    return y if call.bias is None else y + call.bias.to(y.dtype).view(-1, *(1,) * len(call.axes))


def _fixed(call: Call) -> Prepared | None:
    """Prepares heads with fixed displacements as a convolution; None for others, and where softmax is the choice."""
    if not isinstance(call.encoding, Shift) or call.impl == "separable":
        return None
    offsets = tuple(_within(displacement, call.axes) for displacement in call.encoding.displacements)
    shifts = Shifts(offsets, leak=0.0)
    if call.impl != "shift" and not _compact(shifts):
        return None
    reason = "demanded" if call.impl == "shift" else "each head looks at one displacement: a convolution"
    return Prepared("shift", "weights", reason, shifts)


def _within(displacement: Sequence[int], axes: Sequence[Axis]) -> tuple[int, ...]:
    """Limits a displacement to those that lead to a key; beyond them every query looks at the same nearest key."""
    pairs = zip(displacement, axes, strict=True)
    return tuple(min(max(along, axis.lowest), axis.highest) for along, axis in pairs)


def _by_axis(call: Call, encoding: AxisAdditiveEncoding) -> Prepared:
    """Prepares one softmax per axis; where the heads turn out to be hard, a convolution."""
    with torch.autocast(call.device.type, enabled=False):
        tables = encoding.axis_tables(call.axes, call.softmax_dtype, call.device)
    if call.impl == "separable":
        return _separable(call, tables, "demanded")
    most = torch.finfo(call.softmax_dtype).eps * _HARD
    shifts = find_shifts(tables, call.axes, most) if _readable(tables) else None
    if call.impl == "shift":
        if shifts is None:
            raise ArgumentError(
                f"impl='shift' needs hard heads: more than {most:.2g} of their attention falls outside one pixel, or a"
                " compiled graph cannot look; use impl='auto'"
            )
        return Prepared("shift", "weights", "demanded", shifts, _learning(tables))
    if shifts is not None and (shifts.leak == 0 or not _learning(tables)) and _compact(shifts):
        rest = f" (all but {shifts.leak:.2g} of its attention)" if shifts.leak else ""
        reason = f"each head looks at one pixel{rest}: a convolution"
        return Prepared("shift", "weights", reason, shifts, _learning(tables))
    return _separable(call, tables, "the scores are a sum over axes: one softmax per axis")


def _readable(tables: list[Tensor]) -> bool:
    """Tells whether the choice of a path may depend on scores, which a compiled graph and `torch.vmap` forbid."""
    return all(can_be_read(table) for table in tables)


def _learning(tables: list[Tensor]) -> tuple[Tensor, ...]:
    """Returns the tables of scores through which a gradient flows."""
    return tuple(table for table in tables if table.requires_grad)


def _compact(shifts: Shifts) -> bool:
    """Tells whether the kernel that holds all heads is not mostly zeros."""
    return math.prod(shifts.window[1]) <= 2 * len(shifts.offsets)


def _separable(call: Call, tables: list[Tensor], reason: str) -> Prepared:
    """Prepares one softmax per axis; where heads share their weights along the axes, once for all that do."""
    if _is_long(call) and (prepared := _long(call, tables[0], reason)):
        return prepared
    order, work = call.work.order(by_axis=True), call.work
    shareable = call.dtype in (torch.float32, torch.float64) and call.device.type == "cpu" and len(call.axes) < 3
    shareable = shareable and _readable(tables) and not _learning(tables) and not needs_own_operations(*tables)
    if shareable and not (work.factored and order == "values"):
        with torch.no_grad():
            grid = find_head_grid(tables, call.axes, call.geometry, call.dtype)
            if grid is not None:
                sizes = GridSizes(work.batch, work.channels, work.outputs, work.groups, work.itemsize)
                made = grid_attention(grid, sizes)
                return Prepared("separable", "values" if made.order == "values" else "weights", reason, made)
    return Prepared("separable", order, reason, _softmax(call, tables))


def _is_long(call: Call) -> bool:
    """Tells whether the images are long sequences."""
    return len(call.axes) == 1 and call.axes[0].keys >= _LONG


def _long(call: Call, table: Tensor, reason: str) -> Prepared | None:
    """Prepares a long sequence without a weight for every pair: bands, or transforms where heads are wide."""
    if not _readable([table]):
        return None
    work, (axis,) = call.work, call.axes
    bands = find_bands(table, axis, call.dtype)
    pairs = work.weights_first(by_axis=True).flops
    banded = pairs if bands is None else work.bands(bands, axis.queries.step).flops
    transforms = work.fourier().flops * SLOWNESS["long transforms"]
    if call.softmax_dtype == torch.float32 and call.impl == "auto" and transforms < min(pairs, banded):
        return _fourier(call, "the sequence is long and heads are wide")
    if bands is None or banded >= pairs:
        return None
    return Prepared("separable", "weights", f"{reason}, in bands of up to {bands.widest} displacements", bands)


def _softmax(call: Call, tables: list[Tensor]) -> list[Tensor]:
    """Takes the softmax along each axis, for each head."""
    with torch.autocast(call.device.type, enabled=False):
        pairs = zip(tables, call.axes, strict=True)
        return [position_weights(table, (axis,)) for table, axis in pairs]


def _needs_products(x: Tensor, maps: Tensor, bias: Tensor | None) -> bool:
    """Tells whether gradients or autocast ask for products that torch knows."""
    given = [x, maps] if bias is None else [x, maps, bias]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    return learns or torch.is_autocast_enabled(x.device.type) or needs_own_operations(*given)


def _dense(call: Call, reason: str) -> Prepared:
    """Prepares explicit weights for all pairs of queries and keys."""
    table = _table(call)
    weights = [position_weights(table, call.axes)]
    return Prepared("dense", call.work.order(by_axis=False), reason, weights)


def _fourier(call: Call, reason: str) -> Prepared:
    """Prepares filters; where too many queries would lose digits, explicit weights."""
    table = _table(call)
    if not can_be_read(table):
        return _dense(call, "a compiled graph cannot look at the values that transforms need to know")
    filters = fourier_filters(table, call.axes, call.dtype)
    if filters.weak_share > _WEAK:
        lost = f"transforms would lose digits at {filters.weak_share:.0%} of the queries"
        return _dense(call, f"{lost}, so all are computed exactly")
    if filters.weak_share:
        reason += f"; the {filters.weak_share:.1%} of the queries that would lose digits are computed exactly"
    return Prepared("fourier", "weights", reason, filters)


def _table(call: Call) -> Tensor:
    with torch.autocast(call.device.type, enabled=False):
        return call.encoding.table(call.axes, call.softmax_dtype, call.device)


class _NoGradient(torch.autograd.Function):
    """Passes the matrices of hard heads on; the gradient of the heads' scores is zero, and not missing.

    Not the output: what follows may change that in place, which torch forbids where a custom function returned it.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, *scores: Tensor) -> Tensor:
        ctx.save_for_backward(*scores)
        return maps.view_as(maps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return gradient, *(torch.zeros_like(table) for table in ctx.saved_tensors)
