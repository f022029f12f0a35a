"""The choice of how to compute a layer without content: encoding → scores → path (`convattn.functional.paths`)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from convattn.encodings import AxisAdditiveEncoding, Encoding, Shift
from convattn.errors import ArgumentError
from convattn.functional import (
    BandPath,
    Cost,
    FourierPath,
    GridSizes,
    HeadMaps,
    Path,
    SharedPath,
    ShiftPath,
    Shifts,
    WeightsPath,
    Work,
    find_bands,
    find_head_grid,
    find_shifts,
    fourier_filters,
    grid_attention,
    position_weights,
)
from convattn.functional.autocast import without_autocast
from convattn.functional.cost import SLOWNESS
from convattn.functional.derivatives import can_be_read, needs_own_operations
from convattn.grid import Axis
from convattn.layers.checks import fitting_path, image_shape, require_images
from convattn.record import Record

if TYPE_CHECKING:
    from convattn.layers.relative import RelativeAttention


@dataclass(frozen=True)
class Plan(Record):
    """How an attention layer computes its output for images of one shape, and what that costs."""

    path: str  # "separable", "dense", "fourier", "shift", "content", "flex" or "reference"
    order: str  # "weights" if pixels are mixed before they are multiplied with the heads' matrices, "values" if after
    reason: str  # Why this path
    flops: int  # Floating-point operations of a forward pass; a multiplication and an addition count as two
    bytes: int  # Estimated working memory of a forward pass, beyond input, output and parameters
    bound: float  # Largest error beyond rounding for inputs of absolute value ≤ 1
    shape: tuple[int, ...]  # Shape of the images, (batch, channels, *spatial)
    dtype: str  # Dtype of the images
    device: str  # Device of the images

    def summary(self) -> str:
        """Returns the plan in a few lines of plain text."""
        return "\n".join(
            [
                f"{self.path} path, {self.order} first: {self.reason}",
                f"  images          {self.shape}, {self.dtype} on {self.device}",
                f"  operations      {self.flops:,}",
                f"  working memory  {self.bytes:,} bytes",
                f"  error           at most {self.bound:.3g} per unit of the input, beyond rounding",
            ]
        )


REQUESTED = "requested"
"""Reason of a plan whose path was not chosen."""

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


def path_of(
    layer: "RelativeAttention", shape: Sequence[int], dtype: torch.dtype, device: torch.device, axes: tuple[Axis, ...]
) -> tuple[Path, HeadMaps]:
    """Chooses the path of a layer in its present mode; returns it with W_h. Gradients flow back to the encoding."""
    maps = layer.values.factors()
    impl = fitting_path(layer.impl, layer.encoding, content=layer.content is not None, dropout=layer.dropout)
    work = work_of(layer, maps, shape, dtype, device, axes)
    return make_path(layer.encoding, work, impl, layer.dropout if layer.training else 0.0), maps


def work_of(
    layer: "RelativeAttention",
    maps: HeadMaps,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    axes: tuple[Axis, ...],
) -> Work:
    """Describes a call for the choice of its path."""
    return Work(
        batch=shape[0],
        channels=shape[1],
        outputs=(maps.value if maps.output is None else maps.output).shape[1],
        heads=len(maps.value),
        groups=maps.groups,
        inner=maps.value.shape[1],
        factored=maps.output is not None,
        axes=axes,
        geometry=layer.geometry,
        dtype=dtype,
        device=device,
    )


def make_path(encoding: Encoding, work: Work, impl: str, dropout: float) -> Path:
    """Chooses the path of a call and computes its weights; "shift" requested of soft heads raises ArgumentError."""
    if impl == "dense" or dropout:
        reason = REQUESTED if impl == "dense" else "dropout drops single weights, so each is computed"
        return _dense(encoding, work, reason, dropout)
    if impl == "fourier":
        return _fourier(encoding, work, REQUESTED)
    if isinstance(encoding, AxisAdditiveEncoding):
        return _fixed(encoding, work, impl) or _by_axis(encoding, work, impl)
    if _is_long(work) and (path := _long(encoding, work, _table(encoding, work).flatten(1), "one axis", impl)):
        return path
    if work.transforms().flops * SLOWNESS["transforms"] < work.mixing(work.channels, by_axis=False):
        reason = "the scores are not a sum over axes, and the image is large enough for transforms"
        return _fourier(encoding, work, reason)
    return _dense(encoding, work, "the scores are not a sum over axes, and the image is small")


def _fixed(encoding: AxisAdditiveEncoding, work: Work, impl: str) -> Path | None:
    """Runs heads with fixed displacements as a convolution; None for other heads, or if a softmax is requested."""
    if not isinstance(encoding, Shift) or impl == "separable":
        return None
    shifts = Shifts(tuple(_within(displacement, work.axes) for displacement in encoding.displacements), leak=0.0)
    if impl != "shift" and not _compact(shifts):
        return None
    reason = REQUESTED if impl == "shift" else "each head looks at one displacement: a convolution"
    return ShiftPath(name="shift", reason=reason, work=work, shifts=shifts)


def _within(displacement: Sequence[int], axes: Sequence[Axis]) -> tuple[int, ...]:
    """Limits a displacement to those that lead to a key; beyond them every query looks at the same nearest key."""
    pairs = zip(displacement, axes, strict=True)
    return tuple(min(max(along, axis.lowest), axis.highest) for along, axis in pairs)


def _by_axis(encoding: AxisAdditiveEncoding, work: Work, impl: str) -> Path:
    """Computes one softmax per axis, or a convolution if the heads turn out to be hard."""
    with without_autocast(work.device):
        tables = encoding.axis_tables(work.axes, work.softmax_dtype, work.device)
    if impl == "separable":
        return _separable(encoding, work, tables, REQUESTED, impl)
    most = torch.finfo(work.softmax_dtype).eps * _HARD
    learning = tuple(table for table in tables if table.requires_grad)
    readable = all(map(can_be_read, tables))
    shifts = find_shifts(tables, work.axes, most) if readable else None
    if impl == "shift" and shifts is None and work.device.type != "meta":  # which has shapes, and no numbers
        reason = (
            f"more than {most:.2g} of a head's attention falls outside one pixel"
            if readable
            else "a compiled graph, or torch.vmap over the parameters, cannot look at them"
        )
        raise ArgumentError(f"impl='shift' needs hard heads, but {reason}; use impl='auto'")
    if shifts is not None and (impl == "shift" or ((shifts.leak == 0 or not learning) and _compact(shifts))):
        rest = f" (all but {shifts.leak:.2g} of its attention)" if shifts.leak else ""
        reason = REQUESTED if impl == "shift" else f"each head looks at one pixel{rest}: a convolution"
        return ShiftPath(name="shift", reason=reason, work=work, leak=shifts.leak, shifts=shifts, unmoved=learning)
    return _separable(encoding, work, tables, "the scores are a sum over axes: one softmax per axis", impl)


def _compact(shifts: Shifts) -> bool:
    """Tells whether the kernel that holds all heads has few taps beside them."""
    return math.prod(shifts.window[1]) <= _TAPS * len(shifts.offsets)


def _separable(encoding: Encoding, work: Work, tables: list[Tensor], reason: str, impl: str) -> Path:
    """Computes one softmax per axis, and heads that share their weights along the axes together."""
    if _is_long(work) and (path := _long(encoding, work, tables[work.line or 0], reason, impl)):
        return path
    order = work.order(by_axis=True)
    if _may_share(work, tables) and not (work.factored and order == "values"):
        with torch.no_grad():
            grid = find_head_grid(tables, work.axes, work.geometry, work.dtype)
            if grid is not None:
                sizes = GridSizes(work.batch, work.channels, work.outputs, work.groups, work.itemsize)
                shared = grid_attention(grid, sizes)
                first = "values" if shared.order == "values" else "weights"
                return SharedPath(name="separable", reason=reason, work=work, order=first, shared=shared)
    with without_autocast(work.device):
        weights = tuple(position_weights(table, (axis,)) for table, axis in zip(tables, work.axes, strict=True))
    return WeightsPath(name="separable", reason=reason, work=work, order=order, weights=weights)


def _may_share(work: Work, tables: Sequence[Tensor]) -> bool:
    """Tells whether heads may be computed together: not while they learn, nor if torch must see every operation."""
    if work.dtype not in (torch.float32, torch.float64) or work.device.type != "cpu" or len(work.axes) > 2:
        return False
    learns = any(table.requires_grad for table in tables)
    return all(map(can_be_read, tables)) and not learns and not needs_own_operations(*tables)


def _is_long(work: Work) -> bool:
    """Tells whether the images are long sequences, or long lines of one row or column."""
    return work.line is not None and work.axes[work.line].keys >= _LONG


def _long(encoding: Encoding, work: Work, table: Tensor, reason: str, impl: str) -> Path | None:
    """Computes a long sequence without weights for every pair: in bands, or by transforms if heads are wide."""
    if not can_be_read(table):
        return None
    assert work.line is not None
    bands = find_bands(table, work.axes[work.line], work.dtype)
    pairs = work.weights_first(by_axis=True).flops
    banded = pairs if bands is None else work.bands(bands).flops
    transforms = work.fourier().flops * SLOWNESS["long transforms"]
    if work.softmax_dtype == torch.float32 and impl == "auto" and transforms < min(pairs, banded):
        return _fourier(encoding, work, "the sequence is long and heads are wide")
    if bands is None or banded >= pairs:
        return None
    reason += f", in bands of up to {bands.widest} displacements"
    return BandPath(name="separable", reason=reason, work=work, leak=bands.leak, bands=bands)


def _dense(encoding: Encoding, work: Work, reason: str, dropout: float = 0.0) -> Path:
    """Computes explicit weights for all pairs of queries and keys."""
    weights, order = (position_weights(_table(encoding, work), work.axes),), work.order(by_axis=False)
    return WeightsPath(name="dense", reason=reason, work=work, order=order, weights=weights, dropout=dropout)


def _fourier(encoding: Encoding, work: Work, reason: str) -> Path:
    """Computes by transforms, or by explicit weights if too many queries would lose digits."""
    table = _table(encoding, work)
    if not can_be_read(table):
        return _dense(encoding, work, "a compiled graph cannot read the values that transforms depend on")
    filters = fourier_filters(table, work.axes, work.dtype)
    if filters.weak_share > _WEAK:
        lost = f"transforms would lose digits at {filters.weak_share:.0%} of the queries"
        return _dense(encoding, work, f"{lost}, so all are computed exactly")
    if filters.weak_share:
        reason += f"; the {filters.weak_share:.1%} of the queries that would lose digits are computed exactly"
    return FourierPath(name="fourier", reason=reason, work=work, filters=filters)


def _table(encoding: Encoding, work: Work) -> Tensor:
    with without_autocast(work.device):
        return encoding.table(work.axes, work.softmax_dtype, work.device)


def describe_layer(
    layer: "RelativeAttention", shape: Sequence[int], dtype: torch.dtype | None, device: torch.device | str | None
) -> Plan:
    """Returns how a layer computes in its present mode, and what it costs; dtype and device default to the weights'."""
    weight = next(layer.values.parameters())
    sizes = image_shape(shape, layer.in_channels, layer.dims)
    x = torch.empty(sizes, dtype=dtype or weight.dtype, device="meta")
    on = torch.device(device or weight.device)
    require_images(x, layer.in_channels, layer.dims, weight.dtype, on)
    axes = layer.geometry.axes(x.shape[2:])
    if layer.content is not None and layer.needs_content():
        return _describe_content(layer, work_of(layer, layer.values.factors(), x.shape, x.dtype, on, axes), sizes)
    if layer.impl == "reference":
        work = work_of(layer, layer.values.factors(), x.shape, x.dtype, on, axes)
        return _plan(work, sizes, "reference", "weights", REQUESTED, work.reference(), bound=0.0)
    path, maps = path_of(layer, x.shape, x.dtype, on, axes)
    whole = maps.whole().detach()
    largest = 0.0 if whole.is_meta else whole.double().abs().sum((0, 2)).max().item()
    bound = 2 * path.leak * largest
    return _plan(path.work, sizes, path.name, path.order, path.reason, path.cost(), bound=bound)


def _describe_content(layer: "RelativeAttention", work: Work, shape: tuple[int, ...]) -> Plan:
    """Returns how a call with content is computed."""
    content = layer.content
    assert content is not None
    path, reason = (layer.impl, REQUESTED) if layer.impl != "auto" else ("content", "the scores depend on the input")
    key_width = content.query.out_features // layer.num_heads
    along = [axis.highest - axis.lowest + 1 for axis in work.axes]
    features = content.uses_position
    displacements = (sum(along) if layer.encoding.axis_additive else math.prod(along)) if features else 0
    if path == "reference":
        cost = work.explicit_content(key_width, features=features)
    elif path == "flex":
        fused = work.device.type == "cuda"
        cost = work.flex(key_width, displacements, fused=fused)
        slow = ", without gradients and with all weights in memory: the device is not CUDA"
        reason += ", in one kernel" if fused else slow
    else:
        cost = work.content(key_width, displacements)
    return _plan(work, shape, path, "weights", reason, cost, bound=0.0)


def _plan(work: Work, shape: tuple[int, ...], path: str, order: str, reason: str, cost: Cost, *, bound: float) -> Plan:
    dtype = str(work.dtype).removeprefix("torch.")
    return Plan(path, order, reason, cost.flops, cost.bytes, bound, shape, dtype, str(work.device))
