"""Hard heads: each looks at one fixed displacement, so attention is a convolution and is computed as one.

With A_h[q, k] = 1 where k = q + Δ_h and 0 elsewhere, y[q] = Σ_h W_h x[q + Δ_h] (`docs/explanation/theory.md` §3): the
heads are the taps of a kernel, and W_h is its weight at the tap Δ_h.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from convattn.functional.convolution import convolve, convolve_transposed
from convattn.functional.path import Cost, Path
from convattn.functional.reference import HeadMaps, pad_keys
from convattn.grid import Axis, Displacements, Geometry, Window

_TAPS = 2
"""Most taps per head of a convolution that is taken by itself. Beside one softmax per axis, a kernel with 2.25 taps per
head takes 0.7 to 1.6 times as long, one with 4 taps 1.0 to 2.8 times (64 channels on 32 x 32 pixels, 256 on 14 x 14,
four heads, forward and with gradients, float32, one busy core)."""


def hard_leak(dtype: torch.dtype) -> float:
    """Returns the share of its attention that a hard head may give to other pixels: an eighth of the dtype's eps."""
    return torch.finfo(dtype).eps / 8


class WindowConvolution(NamedTuple):
    """What else a convolution needs whose taps are those of a layer's window, for images of any size."""

    displacements: Displacements  # the taps, row by row
    smallest: int  # least number of pixels of an image along each axis
    padding: tuple[int, ...]


def window_convolution(geometry: Geometry) -> WindowConvolution | None:
    """Finds the convolution that computes one head per tap, from the geometry alone.

    Args:
        geometry: The window, its steps and the padding.

    Returns:
        The convolution; None if torch's convolutions cannot pad so by themselves.
    """
    if not _pads_zeros(geometry):
        return None
    window = Window.fit(geometry, geometry.window)
    if window is None:
        return None
    padding = []
    smallest = 1
    for taps, pixels in zip(window.taps, window.padding, strict=True):
        assert isinstance(pixels, int)
        smallest = max(smallest, taps[-1] - taps[0] + 1 - 2 * pixels)
        padding.append(pixels)
    return WindowConvolution(geometry.taps(), smallest, tuple(padding))


def _pads_zeros(geometry: Geometry) -> bool:
    """Tells whether nothing but zeros is around the image, as in torch's functions."""
    return geometry.padding_mode == "zeros" or all(pair == (0, 0) for pair in geometry.padding)


class Shifts(NamedTuple):
    """Where hard heads look."""

    # Displacement of each head. Where it leads out of the image, the head looks at the nearest key.
    offsets: Displacements
    leak: float  # largest share of attention, over heads and queries, that is not at that key

    @property
    def window(self) -> tuple[range, ...]:
        """The kernel that holds all heads: displacements of its taps along each axis."""
        taps = []
        for along in zip(*self.offsets, strict=True):
            low = min(along)
            step = math.gcd(*(offset - low for offset in along)) or 1
            taps.append(range(low, max(along) + 1, step))
        return tuple(taps)

    @property
    def is_compact(self) -> bool:
        """Whether the kernel that holds all heads has few taps beside them."""
        return math.prod(map(len, self.window)) <= _TAPS * len(self.offsets)


def fixed_shifts(displacements: Sequence[tuple[int, ...]], axes: Sequence[Axis]) -> Shifts:
    """Returns the displacements of hard heads, limited to those that lead to a key."""
    # Beyond them every query looks at the same nearest key.
    offsets = []
    for displacement in displacements:
        by_axis = zip(displacement, axes, strict=True)
        limited = (min(max(along, axis.lowest), axis.highest) for along, axis in by_axis)
        offsets.append(tuple(limited))
    return Shifts(tuple(offsets), leak=0.0)


def _by_tap(
    maps: Tensor,
    offsets: Sequence[tuple[int, ...]],
    window: Sequence[range],
) -> Float[Tensor, "taps outputs channels"]:
    """Adds up the matrices of heads at the same tap; those of a tap without a head are zero."""
    count = math.prod([len(taps) for taps in window])  # torch.compile takes no map
    heads_at: list[list[Tensor]] = [[] for _ in range(count)]
    in_order = len(offsets) == count
    for head, offset in enumerate(offsets):
        place = 0
        for value, taps in zip(offset, window, strict=True):
            place = place * len(taps) + (value - taps.start) // taps.step
        heads_at[place].append(maps[head])
        in_order = in_order and place == head
    if in_order:
        return maps
    empty = maps.new_zeros(maps.shape[1:])
    # no index tensor, which would be copied to a GPU in each call
    return torch.stack([sum(heads, empty) for heads in heads_at])


def _seen(window: Sequence[range], axes: Sequence[Axis]) -> list[tuple[int, int]]:
    """Returns the first pixel under the kernel along each axis, and the one after the last; keys begin at 0."""
    return [
        (axis.queries[0] + taps[0], axis.queries[-1] + taps[-1] + 1)
        for axis, taps in zip(axes, window, strict=True)
    ]


def _pixels_seen(
    keys: Tensor, seen: Sequence[tuple[int, int]]
) -> Float[Tensor, "batch channels *seen"]:
    """Cuts out the keys under the kernel; beyond the border the nearest key is repeated."""
    repeats = []
    cuts = []
    for count, (start, stop) in zip(keys.shape[2:], seen, strict=True):
        first = min(max(0, start), count - 1)
        end = max(1, min(stop, count))
        cuts.append(slice(first, end))
        repeats = [max(0, -start), max(0, stop - count), *repeats]
    inside = keys[(..., *cuts)]
    if not any(repeats):
        return inside
    return functional.pad(inside, repeats, mode="replicate")


def find_shifts(
    tables: Sequence[Float[Tensor, "heads _"]],
    axes: Sequence[Axis],
    most: float,
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
    offsets = []
    leak = 0.0
    for table, axis in zip(tables, axes, strict=True):
        scores = table.detach()
        shares = torch.softmax(scores, -1)
        if 1 - shares.amax(-1).amin().item() > most:  # most heads are soft, and seen to be by this
            return None
        highest = scores.argmax(-1, keepdim=True)
        elsewhere = shares.scatter(-1, highest, 0.0 * scores.amax(-1, keepdim=True))
        along = highest + axis.lowest
        leaks = [
            elsewhere.sum(-1).amax().item(),
            _leak_at_end(scores, along, axis),
            _leak_at_end(scores.flip(-1), -along, axis.mirrored),
        ]
        if not all(leak + more <= most for more in leaks):  # nor if one is no number
            return None
        leak += max(leaks)
        offsets.append(along[:, 0].tolist())
    return Shifts(tuple(zip(*offsets, strict=True)), leak)


def _leak_at_end(
    scores: Float[Tensor, "heads displacements"],
    offsets: Int[Tensor, "heads 1"],
    axis: Axis,
) -> float:
    """Bounds the leak of queries whose displacement leads out after the last key, which they should look at."""
    # where the displacement is that leads from each query to the last key
    nearest = slice(axis.keys - 1, None, axis.queries.step)
    leads_out = (axis.displacements(scores.device) < offsets)[:, nearest]
    if not leads_out.any():
        return 0.0
    sums = scores.logcumsumexp(-1)[:, :-1]
    below = functional.pad(sums, (1, 0), value=-math.inf)
    ratios = (below - scores).exp()[:, nearest]
    return ratios.masked_fill(~leads_out, 0.0).amax().item()


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ShiftPath(Path):
    """A convolution: every head looks at one pixel."""

    name: ClassVar[str] = "shift"
    by_axis: ClassVar[bool] = True

    shifts: Shifts
    # scores of heads that learn: their gradient is zero, not missing
    unmoved: tuple[Tensor, ...] = ()

    def cost(self) -> Cost:
        """Counts the kernel that holds all heads."""
        sizes = self.sizes
        taps = math.prod(map(len, self.shifts.window))
        kernel = taps * sizes.channels * sizes.outputs // sizes.groups
        return Cost(2 * sizes.batch * sizes.queries * kernel, kernel * sizes.itemsize)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Convolves; gradients with respect to images, matrices and bias are exact.

        Where the images are spread out it is a transposed convolution if that has such arguments, so that the zeros
        between the pixels are not made.
        """
        axes = self.sizes.axes
        geometry = self.sizes.geometry
        whole = maps.whole()
        for scores in self.unmoved:
            whole = whole + 0 * scores.amax()
        taps = self.shifts.window
        by_tap = _by_tap(whole, self.shifts.offsets, taps)
        window = None
        if _pads_zeros(geometry):
            window = Window.fit(geometry, taps, transposed=geometry.spreads)
        seen = _seen(taps, axes)
        leads_out = any(
            start < 0 or stop > axis.keys for (start, stop), axis in zip(seen, axes, strict=True)
        )
        if window is None or leads_out:
            x = _pixels_seen(pad_keys(x, geometry), seen)
            window = Window(taps, (0,) * len(axes))
        padding = window.padding
        extra = window.output_padding
        assert not isinstance(padding, str)
        size = tuple(map(len, taps))
        steps = tuple(along.step for along in taps)
        if extra is None:
            kernel = by_tap.movedim(0, -1).unflatten(-1, size)
            stride = [axis.queries.step for axis in axes]
            return convolve(x, kernel, bias, stride, padding, steps, maps.groups)
        pattern = "taps (groups outputs) inputs -> (groups inputs) outputs taps"
        kernel = rearrange(by_tap.flip(0), pattern, groups=maps.groups).unflatten(-1, size)
        return convolve_transposed(
            x, kernel, bias, geometry.input_dilation, padding, extra, maps.groups, steps
        )
