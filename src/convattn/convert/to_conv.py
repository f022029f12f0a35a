"""From attention to convolution: exact for hard heads, else up to borders and distant attention.

Read downwards: the windows that torch's convolutions can have, the attention of a layer's heads, hard heads, the choice
of a kernel, and the conversion.
"""

import copy
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from convattn.convert.certificate import (
    Certificate,
    certify_convolution,
    draw_images,
    require_share,
    smallest_image,
    softmax_copy,
)
from convattn.convert.surgery import keep_random_state
from convattn.convert.taps import (
    CONVOLUTIONS,
    TRANSPOSED_CONVOLUTIONS,
    AnyConvolution,
    why_not_numbers,
)
from convattn.convert.to_attention import ATTENTION_LAYERS
from convattn.encodings import (
    AxisAdditiveEncoding,
    Encoding,
    LearnedAxial,
    LearnedTable,
    Quadratic,
    Shift,
)
from convattn.errors import (
    ArgumentError,
    ConversionError,
    UnknownNameError,
    UnsupportedModelError,
    lacks_memory,
    must_be,
)
from convattn.functional import find_shifts
from convattn.functional.torch_modes import without_autocast
from convattn.grid import PADDING_MODES, Axis, Geometry, PerAxis, axis_lists
from convattn.layers import FactoredValues, MergedValues, NormalisedConv, RelativeAttention

_MOST_NUMBERS = 1 << 28
"""Numbers of a kernel, which takes 2 GiB in float64."""

_HARD = 1 / 8
"""Attention that a hard head may give to other pixels, as a share of the eps of the weights' dtype."""

_FARTHEST = 1 << 20
"""Displacement in pixels beyond which float32 does not tell neighbouring pixels apart."""

_MOST_DISPLACEMENTS = 1 << 18
_LONGEST = 1 << 10
"""Limits of the search for an image size: displacements of a grid, and keys along an axis."""

_RANGE = {torch.float32: (100, 60), torch.float64: (600, 600)}
"""How many powers of e below its maximum a kernel may be at displacement 0, and beyond how many all of it is raised."""

_BORDERS = ("plain", "auto", "exact")
"""What happens at borders: a plain convolution with padding; a normalised one where that errs; where not, an error."""


class Window(NamedTuple):
    """A convolution's taps, seen from the attention layer's queries, and its arguments."""

    first: tuple[int, ...]  # Displacement of the first tap from the query, in pixels per axis
    taps: tuple[int, ...]  # Number of taps per axis
    steps: tuple[int, ...]  # Step from one tap to the next, in pixels per axis
    padding: tuple[int, ...] | Literal["same"]  # Argument of torch's convolution
    output_padding: (
        tuple[int, ...] | None
    )  # Argument of torch's transposed convolution; None for a plain one

    def within(self, geometry: Geometry) -> bool:
        """Tells whether no tap leads out of the keys, from any query of any image."""
        along = zip(
            *self[:3], geometry.anchor, geometry.dilation, geometry.kernel_size, strict=True
        )
        return all(
            low >= -anchor and low + (taps - 1) * step <= d * (k - 1) - anchor
            for low, taps, step, anchor, d, k in along
        )


def own_window(geometry: Geometry) -> Window | None:
    """Returns the layer's own window, or None if no torch convolution has it with the layer's padding."""
    first, taps, steps = (
        tuple(-anchor for anchor in geometry.anchor),
        geometry.kernel_size,
        geometry.dilation,
    )
    if not _transposed(geometry):
        plain = _fit_window(geometry, first, taps, steps, transposed=False)
        if plain is not None:
            return plain
        totals = [d * (k - 1) for d, k in zip(steps, taps, strict=True)]
        same = [(total // 2, total - total // 2) for total in totals]
        if set(geometry.stride) == {1} and list(geometry.padding) == same:
            return Window(first, taps, steps, "same", None)
    return _fit_window(geometry, first, taps, steps, transposed=True)


def box_window(geometry: Geometry, low: Sequence[int], high: Sequence[int]) -> Window | None:
    """Returns the smallest window without gaps, from `low` to `high` at least, that keeps the layer's output size.

    torch pads both sides equally, so it may be larger than needed on one side. None means that no torch convolution has
    the layer's stride and input dilation.
    """
    transposed, first, taps = _transposed(geometry), [], []
    for axis, (start, stop) in enumerate(zip(low, high, strict=True)):
        middle, reach = _middle(geometry, axis), _reach(geometry, axis)
        if transposed:
            end = max(stop, reach, middle - start)
            begin = min(start, middle + geometry.input_dilation[axis] - 1 - end)
        else:
            begin = min(start, middle - stop, reach)
            end = middle - begin
        first.append(begin)
        taps.append(end - begin + 1)
    return _fit_window(geometry, tuple(first), tuple(taps), (1,) * len(taps), transposed=transposed)


def sized_windows(geometry: Geometry, kernel_size: tuple[int, ...]) -> list[Window]:
    """Returns the windows of a given size that keep the layer's output size, with its dilation and without it."""
    own, transposed = own_window(geometry), _transposed(geometry)
    windows = [own if own is not None and own.taps == kernel_size else None]
    for steps in dict.fromkeys([geometry.dilation, (1,) * len(kernel_size)]):
        spans = [step * (taps - 1) for step, taps in zip(steps, kernel_size, strict=True)]
        starts = [
            _start(geometry, axis, span, transposed=transposed) for axis, span in enumerate(spans)
        ]
        first = tuple(start for start in starts if start is not None)
        if len(first) == len(starts):
            windows.append(_fit_window(geometry, first, kernel_size, steps, transposed=transposed))
    return [window for window in windows if window is not None]


def _transposed(geometry: Geometry) -> bool:
    return set(geometry.input_dilation) != {1}


def _middle(geometry: Geometry, axis: int) -> int:
    """Returns the sum of first and last displacement with which a plain convolution keeps the output size."""
    (before, after), anchor = geometry.padding[axis], geometry.anchor[axis]
    return before - after + geometry.dilation[axis] * (geometry.kernel_size[axis] - 1) - 2 * anchor


def _reach(geometry: Geometry, axis: int) -> int:
    """Returns the displacement from the first query to the first input pixel, where an unpadded window begins."""
    return geometry.padding[axis][0] - geometry.anchor[axis]


def _start(geometry: Geometry, axis: int, span: int, *, transposed: bool) -> int | None:
    """Returns the first displacement of a window of a given span, or None if there is no such window."""
    for extra in range(geometry.input_dilation[axis] if transposed else 1):
        start, odd = divmod(_middle(geometry, axis) + extra - span, 2)
        fits = (
            start + span >= _reach(geometry, axis)
            if transposed
            else start <= _reach(geometry, axis)
        )
        if not odd and fits:
            return start
    return None


def _fit_window(
    geometry: Geometry,
    first: tuple[int, ...],
    taps: tuple[int, ...],
    steps: tuple[int, ...],
    *,
    transposed: bool,
) -> Window | None:
    """Returns the window with the padding that puts its first tap there; None if torch has no such convolution."""
    padded = any(pixels > 0 for pair in geometry.padding for pixels in pair)
    if transposed and (
        set(geometry.stride) != {1} or (padded and geometry.padding_mode != "zeros")
    ):
        return None
    padding, output_padding = [], []
    for axis, (low, n, step) in enumerate(zip(first, taps, steps, strict=True)):
        high, reach = low + (n - 1) * step, _reach(geometry, axis)
        padding.append(high - reach if transposed else reach - low)
        output_padding.append(low + high - _middle(geometry, axis))
        most = max(geometry.input_dilation[axis], step) if transposed else 1
        if padding[-1] < 0 or not 0 <= output_padding[-1] < most:
            return None
    return Window(first, taps, steps, tuple(padding), tuple(output_padding) if transposed else None)


def unit_steps(geometry: Geometry, spatial: Sequence[int]) -> tuple[Axis, ...]:
    """Returns a layer's axes for images of given sizes, with a query at every pixel, whatever its stride."""
    return tuple(
        Axis(range(axis.queries[0], axis.queries[0] + axis.keys - d * (k - 1)), axis.keys)
        for axis, d, k in zip(
            geometry.axes(spatial), geometry.dilation, geometry.kernel_size, strict=True
        )
    )


@dataclass(frozen=True)
class AttentionMap:
    """ā_h(δ) = g_h(δ) / max_q Z_h(q), with g = exp s and Z_h(q) the sum of g_h over the keys that query q sees.

    The query that sees most of a head attends exactly like this. Any other query gives at least as much to each key
    that it sees. Far from borders, all queries of heads that fall off with distance attend like this.
    """

    axes: tuple[Axis, ...]  # Queries, at every pixel, and keys
    # ā in float64, (heads, *displacements), from the lowest to the highest displacement of each axis
    weights: Float[Tensor, "heads *displacements"]
    totals: Float[Tensor, "heads *queries"]  # Z_h(q) / max_q Z_h(q), (heads, *queries), at most 1

    def mask(self, window: Window) -> Bool[Tensor, " *displacements"]:
        """Marks the displacements that are taps of a window."""
        marks = []
        for axis, low, taps, step in zip(
            self.axes, window.first, window.taps, window.steps, strict=True
        ):
            offset = axis.displacements() - low
            marks.append((offset % step == 0) & (offset >= 0) & (offset <= (taps - 1) * step))
        grids = torch.meshgrid(*marks, indexing="ij")
        return torch.stack(grids).all(0).to(self.weights.device)

    def leak(self, window: Window) -> float:
        """Returns the largest share of attention that any query of any head gives to keys outside a window."""
        return (
            (_sum_over_keys(self.weights * ~self.mask(window), self.axes) / self.totals)
            .nan_to_num(1)
            .max()
            .item()
        )

    def left_out(self, window: Window) -> float:
        """Returns the largest share of ā of any head outside a window, over all displacements."""
        return (self.weights * ~self.mask(window)).flatten(1).sum(1).max().item()

    def shares(self) -> Float[Tensor, "heads *displacements"]:
        """Returns max_q A_h[q, q + δ], the largest share that any query gives to the key at each displacement."""
        least = self.totals  # becomes the smallest Z_h of the queries that see a displacement
        for dim, axis in enumerate(self.axes, start=1):
            before, after = least.cummin(dim).values, least.flip(dim).cummin(dim).values.flip(dim)
            delta, last = axis.displacements(least.device), len(axis.queries) - 1
            up_to = (axis.keys - 1 - delta - axis.queries[0]).clamp(0, last)
            from_on = (-delta - axis.queries[0]).clamp(0, last)
            ahead = (delta >= 0).view(-1, *(1,) * (least.ndim - 1 - dim))
            least = torch.where(
                ahead, before.index_select(dim, up_to), after.index_select(dim, from_on)
            )
        return self.weights / least

    def errors(
        self, window: Window, geometry: Geometry, *, zeros: bool
    ) -> Float[Tensor, "heads *queries"]:
        """Bounds Σ_k |A_h[q, k] − Ã_h[q, k]| per unit of the largest pixel; Ã is ā in the window and 0 elsewhere.

        `zeros` says that the image is padded with zeros; otherwise it is padded with other pixels.
        """
        inside = self.mask(window)
        pads = geometry.padding if zeros else ((0, 0),) * len(self.axes)
        held, missed = (
            _sum_over_keys(self.weights * mask, self.axes, pads) for mask in (inside, ~inside)
        )
        # A ≥ ā on the keys: in the window it is too large by held (1/Z − 1), outside by missed / Z
        error = torch.where(self.totals > 0, (held * (1 - self.totals) + missed) / self.totals, 1.0)
        if zeros or window.within(geometry):
            return error
        kernel = (self.weights * inside).flatten(1).sum(1).view(-1, *(1,) * len(self.axes))
        return error + (kernel - _sum_over_keys(self.weights * inside, self.axes)).clamp(
            min=0
        )  # taps beyond the keys

    def kernel(
        self, window: Window, maps: Float[Tensor, "heads outputs channels"]
    ) -> Float[Tensor, "outputs channels *taps"]:
        """Returns K[δ] = Σ_h ā_h(δ) W_h at the taps of a window; 0 where no query sees δ."""
        weights = self.weights
        along = zip(self.axes, window.first, window.taps, window.steps, strict=True)
        for dim, (axis, low, taps, step) in enumerate(along, start=1):
            index = torch.arange(taps) * step + low - axis.lowest
            seen = ((index >= 0) & (index < weights.shape[dim])).to(weights)
            place = index.clamp(0, weights.shape[dim] - 1).to(weights.device)
            weights = weights.index_select(dim, place) * seen.view(
                -1, *(1,) * (weights.ndim - 1 - dim)
            )
        return einsum(weights, maps, "heads ..., heads outputs channels -> outputs channels ...")

    def trimmed(self, mass: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the lowest and highest displacements of a box that leaves at most `mass` of each head outside.

        No side of the box can be moved inwards.
        """
        rest = torch.full(
            (len(self.weights),), mass, dtype=torch.float64, device=self.weights.device
        )
        box = self.weights
        low, high = [axis.lowest for axis in self.axes], [axis.highest for axis in self.axes]
        while True:
            ends = [
                (dim, end) for dim in range(1, box.ndim) for end in (0, -1) if box.shape[dim] > 1
            ]
            faces = [
                (box.select(dim, end).reshape(len(box), -1).sum(1), dim, end) for dim, end in ends
            ]
            faces = [(face, dim, end) for face, dim, end in faces if bool((face <= rest).all())]
            if not faces:
                return tuple(low), tuple(high)
            face, dim, end = min(faces, key=lambda item: item[0].max().item())
            rest, box = rest - face, box.narrow(dim, 1 if end == 0 else 0, box.shape[dim] - 1)
            if end == 0:
                low[dim - 1] += 1
            else:
                high[dim - 1] -= 1

    def falls_off(self, mass: float) -> bool:
        """Tells whether half of this grid's displacements hold all but `mass` of each head."""
        ends = zip(*self.trimmed(mass), self.axes, strict=True)
        return all(
            2 * first >= axis.lowest and 2 * last <= axis.highest for first, last, axis in ends
        )


def map_attention(encoding: Encoding, axes: tuple[Axis, ...], device: torch.device) -> AttentionMap:
    """Computes the attention of an encoding's heads in float64, for given queries and keys."""
    with torch.no_grad(), without_autocast(device):
        return _map_scores(_scores(encoding, axes, device), axes)


def _map_scores(
    scores: Float[Tensor, "heads *displacements"], axes: tuple[Axis, ...]
) -> AttentionMap:
    """Computes the attention of scores."""
    heads = (-1, *(1,) * len(axes))
    table = torch.exp(scores - scores.flatten(1).amax(1).view(heads))
    totals = _sum_over_keys(table, axes)
    most = totals.flatten(1).amax(1).view(heads)
    return AttentionMap(axes, table / most, totals / most)


def _scores(
    encoding: Encoding, axes: Sequence[Axis], device: torch.device
) -> Float[Tensor, "heads *displacements"]:
    """Scores all displacements; scores that are sums over axes need only one small table per axis."""
    if not isinstance(encoding, AxisAdditiveEncoding):
        return encoding.table(axes, torch.float64, device)
    scores, *others = encoding.axis_tables(axes, torch.float64, device)
    for table in others:
        scores = scores[..., None] + table.view(len(table), *(1,) * (scores.ndim - 1), -1)
    return scores


def _sum_over_keys(
    table: Tensor, axes: Sequence[Axis], pads: Sequence[tuple[int, int]] | None = None
) -> Tensor:
    """Sums a table, for each query, over the displacements to the keys that it sees, without padding."""
    for dim, (axis, (before, after)) in enumerate(
        zip(axes, pads or [(0, 0)] * len(axes), strict=True), start=1
    ):
        queries, delta = torch.tensor(list(axis.queries))[:, None], axis.displacements()[None]
        key = queries + delta
        sees = ((key >= max(before, 0)) & (key < axis.keys - max(after, 0))).to(table)
        table = (table.movedim(dim, -1) @ sees.mT).movedim(-1, dim)
    return table


class HardHeads(NamedTuple):
    """Heads that attend to one displacement each; where it leads beyond the keys, to the nearest key."""

    displacements: tuple[
        tuple[int, ...], ...
    ]  # From the query to the pixel, one integer per axis for each head
    leak: float  # Largest share of attention at other pixels
    any_size: (
        bool  # Whether this holds for images of any size, or only for the size that was examined
    )

    def window(self, geometry: Geometry, taps: tuple[int, ...] | None) -> Window | None:
        """Chooses a window that contains the displacements of all heads; None if no torch convolution has one.

        Where `taps` is None this is the layer's own window if it contains them, else the smallest one without gaps.
        """
        own = own_window(geometry)
        windows = (
            sized_windows(geometry, taps) if taps is not None else [own] if own is not None else []
        )
        held = next((window for window in windows if self._are_taps_of(window)), None)
        if held is not None or taps is not None:
            return held
        along = list(zip(*self.displacements, strict=True))
        return box_window(geometry, [min(one) for one in along], [max(one) for one in along])

    def kernel(
        self, window: Window, maps: Float[Tensor, "heads outputs channels"]
    ) -> Float[Tensor, "outputs channels *taps"]:
        """Returns the kernel: each head's matrix at its tap, summed where heads share a tap."""
        kernel = maps.new_zeros(*maps.shape[1:], *window.taps)
        for displacement, matrix in zip(self.displacements, maps, strict=True):
            steps = zip(displacement, window.first, window.steps, strict=True)
            kernel[(..., *((d - low) // step for d, low, step in steps))] += matrix
        return kernel

    def seen(self, axes: tuple[Axis, ...]) -> bool:
        """Tells whether each displacement leads from some query to a key."""
        along = zip(*self.displacements, strict=True)
        return all(
            axis.lowest <= min(one) and max(one) <= axis.highest
            for one, axis in zip(along, axes, strict=True)
        )

    def _are_taps_of(self, window: Window) -> bool:
        return all(
            (d - low) % step == 0 and 0 <= (d - low) // step < taps
            for displacement in self.displacements
            for d, low, step, taps in zip(
                displacement, window.first, window.steps, window.taps, strict=True
            )
        )


def find_hard_heads(
    layer: RelativeAttention, axes: tuple[Axis, ...], mode: str
) -> HardHeads | None:
    """Returns the heads if all are hard and padding in `mode` gives the same as attention beyond the keys, else None.

    Displacements that the encoding itself determines hold for images of every size. Otherwise, or if one of them leads
    to no key at these sizes, the attention is examined, and the result holds for these sizes only.
    """
    weight = next(layer.values.parameters())
    heads = fixed_heads(layer.encoding, weight.dtype)
    if heads is None or not heads.seen(axes):
        if not isinstance(layer.encoding, AxisAdditiveEncoding):
            return None
        with torch.no_grad(), without_autocast(weight.device):
            tables = layer.encoding.axis_tables(axes, torch.float64, weight.device)
        shifts = find_shifts(tables, axes, torch.finfo(weight.dtype).eps * _HARD)
        if shifts is None:
            return None
        heads = HardHeads(shifts.offsets, shifts.leak, any_size=False)
    return heads if _padding_agrees(layer.geometry, heads, mode) else None


def fixed_heads(encoding: Encoding, dtype: torch.dtype) -> HardHeads | None:
    """Returns heads that are hard for images of any size, as the encoding alone shows, or None.

    A quadratic head f ≤ ½ from a pixel along an axis gives its other pixels, at distances m on both sides, at most
    `Σ_{m≥1} e^{−α(m² − 2mf)} + e^{−α(m² + 2mf)}` of what that pixel has. Beyond the keys the nearest key takes its
    place, and the others are farther still. With m² ≥ 3m − 2 the sums are at most geometric ones. The leak must stay
    below the rounding of `dtype`, that of the weights.
    """
    if isinstance(encoding, Shift):
        return HardHeads(encoding.displacements, 0.0, any_size=True)
    if not isinstance(encoding, Quadratic):
        return None
    centres, alpha = (
        encoding.centres.detach().double().cpu(),
        encoding.sharpness.detach().double().cpu()[:, None],
    )
    nearest = centres.round()
    away = (centres - nearest).abs()
    near = torch.exp(-alpha * (1 - 2 * away)) / -torch.expm1(-alpha * (3 - 2 * away))
    far = torch.exp(-alpha * (1 + 2 * away)) / -torch.expm1(-3 * alpha)
    leak = (near + far).sum(1).max().item()
    if not (leak <= torch.finfo(dtype).eps * _HARD and nearest.abs().max().item() <= _FARTHEST):
        return None
    return HardHeads(
        tuple(tuple(int(d) for d in head) for head in nearest.tolist()), leak, any_size=True
    )


def _padding_agrees(geometry: Geometry, heads: HardHeads, mode: str) -> bool:
    """Tells whether padding holds the same beyond the keys as the nearest key, where heads lead there."""
    sides = []  # (axis, 0 before or 1 after) where a head of some query leads beyond the keys
    for axis, along in enumerate(zip(*heads.displacements, strict=True)):
        anchor = geometry.anchor[axis]
        last = geometry.dilation[axis] * (geometry.kernel_size[axis] - 1) - anchor
        sides += [(axis, 0)] if min(along) < -anchor else []
        sides += [(axis, 1)] if max(along) > last else []
    if not sides:
        return True
    if any(pixels < 0 for pair in geometry.padding for pixels in pair):
        return False
    if mode == "replicate":
        return not _transposed(geometry)
    return mode == "zeros" and all(geometry.padding[axis][end] > 0 for axis, end in sides)


class KernelChoice(NamedTuple):
    """A kernel for an attention layer, and what it misses."""

    kernel: Float[Tensor, "outputs channels *taps"]  # In float64
    window: Window  # Where its taps are
    padding_mode: str  # How the image is padded
    errors: Float[
        Tensor, "heads queries"
    ]  # Share of the attention that the kernel misses; one column if all the same
    leak: float  # Largest share of attention outside the window
    any_size: bool  # Whether this holds for images of any size


def choose_sizes(layer: RelativeAttention, mass: float, spatial: PerAxis | None) -> tuple[int, ...]:
    """Chooses the sizes of the images for which a kernel is computed and measured; those of the user if given.

    Tables get the sizes that just use the whole table, hard heads sizes at which each displacement leads to a key. For
    others, sizes grow until the heads use only half of the displacements. Raises ArgumentError if they always use more.
    """
    geometry = layer.geometry
    if spatial is not None:
        sizes = axis_lists("spatial", spatial, layer.dims, least=1)
        layer.encoding.require_axes(unit_steps(geometry, sizes))
        return sizes
    if isinstance(layer.encoding, LearnedAxial | LearnedTable):
        pads, steps = (sum(pair) for pair in geometry.padding), geometry.input_dilation
        held = zip(layer.encoding.extent, pads, steps, strict=True)
        return tuple(max(1, (extent - pad - 1) // step + 1) for extent, pad, step in held)
    weight = next(layer.values.parameters())
    least, extra, own = smallest_image(geometry), 4, own_window(geometry)
    heads = fixed_heads(layer.encoding, weight.dtype)
    while True:
        sizes = tuple(size + extra + axis for axis, size in enumerate(least))
        axes = unit_steps(geometry, sizes)
        many = heads is None and math.prod(2 * axis.keys for axis in axes) > _MOST_DISPLACEMENTS
        if extra > 4 and (many or max(sizes) > _LONGEST):
            why = "the heads do not fall off with distance, so that the kernel depends on the image's size"
            raise ArgumentError(must_be("spatial", f"given, because {why}", spatial))
        if heads is not None:
            enough = heads.seen(axes)
        else:
            attention = map_attention(layer.encoding, axes, weight.device)
            enough = (own is not None and attention.left_out(own) <= mass) or attention.falls_off(
                mass
            )
        if enough:
            return sizes
        extra += extra // 2


def padding_modes(geometry: Geometry, asked: str | None) -> tuple[str, ...]:
    """Returns the padding modes to try; a layer that pads has only its own."""
    if asked is not None and asked not in PADDING_MODES:
        raise UnknownNameError("padding_mode", asked, PADDING_MODES)
    if geometry.keeps_grid:
        return ("zeros", "replicate") if asked is None else (asked,)
    if asked not in (None, geometry.padding_mode):
        raise ArgumentError(
            must_be("padding_mode", f"None or the layer's own {geometry.padding_mode!r}", asked)
        )
    return (geometry.padding_mode,)


def closest_kernel(
    layer: RelativeAttention, sizes: tuple[int, ...], choices: Sequence[KernelChoice]
) -> KernelChoice:
    """Returns the first kernel for any image size, or else the closest on random pixels of mean 1 and deviation 1."""
    for choice in choices:
        if choice.any_size or len(choices) == 1:
            return choice
    exact, x = softmax_copy(layer, torch.float64), 1 + draw_images(layer, sizes, torch.float64)
    expected = exact(x)
    return min(
        choices,
        key=lambda choice: (make_convolution(exact, choice)(x) - expected).square().mean().item(),
    )


def choose_kernel(
    layer: RelativeAttention,
    sizes: tuple[int, ...],
    maps: Float[Tensor, "heads outputs channels"],
    taps: tuple[int, ...] | None,
    mass: float,
    mode: str,
) -> KernelChoice:
    """Returns the kernel of hard heads if all are and a window holds them, else that of the attention itself."""
    geometry, axes = layer.geometry, unit_steps(layer.geometry, sizes)
    hard = find_hard_heads(layer, axes, mode)
    window = None if hard is None else hard.window(geometry, taps)
    if hard is not None and window is not None:
        mode = _paddable_mode(window, geometry, mode, sizes)
        errors = maps.new_full((len(maps), 1), 2 * hard.leak)
        return KernelChoice(
            hard.kernel(window, maps), window, mode, errors, hard.leak, hard.any_size
        )
    attention = map_attention(layer.encoding, axes, next(layer.parameters()).device)
    window = _window_of_heads(attention, geometry, taps, mass)
    mode = _paddable_mode(window, geometry, mode, sizes)
    zeros = mode == "zeros" and all(pixels >= 0 for pair in geometry.padding for pixels in pair)
    errors = attention.errors(window, geometry, zeros=zeros).flatten(1)
    return KernelChoice(
        attention.kernel(window, maps), window, mode, errors, attention.leak(window), any_size=False
    )


def _window_of_heads(
    attention: AttentionMap, geometry: Geometry, taps: tuple[int, ...] | None, mass: float
) -> Window:
    """Chooses the window for heads that are not hard."""
    if taps is not None:
        windows = sized_windows(geometry, taps)
        if not windows:
            size = "the layer's output size (odd instead of even, or even instead of odd)"
            raise ArgumentError(
                must_be("kernel_size", f"one with which a torch convolution gives {size}", taps)
            )
        return min(windows, key=attention.left_out)
    own = own_window(geometry)
    if own is not None and attention.left_out(own) <= mass:
        return own
    window = box_window(geometry, *attention.trimmed(mass))
    if window is None:
        raise ConversionError(f"cannot convert: no torch convolution has this geometry: {geometry}")
    return window


def _paddable_mode(window: Window, geometry: Geometry, mode: str, sizes: Sequence[int]) -> str:
    """Returns the padding mode, the layer's own if no tap needs another; raises if torch cannot pad such images so."""
    if window.within(geometry):
        mode = geometry.padding_mode
    slack = {"reflect": 1, "circular": 0}.get(mode)
    if slack is None or window.padding == "same":
        return mode
    for axis, (pixels, size) in enumerate(zip(window.padding, sizes, strict=True)):
        if pixels > size - slack:
            raise ConversionError(
                f"cannot convert: {mode} padding of {pixels} along axis {axis} needs images of at least"
                f" {pixels + slack} pixels, but spatial is {tuple(sizes)}; give a smaller kernel_size"
            )
    return mode


def make_convolution(layer: RelativeAttention, choice: KernelChoice) -> AnyConvolution:
    """Makes the convolution with a chosen kernel."""
    window, kernel = choice.window, choice.kernel
    parameter = next(layer.values.parameters())
    options = {
        "kernel_size": window.taps,
        "padding": window.padding,
        "dilation": window.steps,
        "groups": layer.groups,
        "bias": layer.bias is not None,
        "device": parameter.device,
        "dtype": parameter.dtype,
    }
    if window.output_padding is not None:
        options |= {
            "stride": layer.geometry.input_dilation,
            "output_padding": window.output_padding,
        }
        conv: AnyConvolution = TRANSPOSED_CONVOLUTIONS[layer.dims](
            layer.in_channels, layer.out_channels, **options
        )
        flipped = kernel.flip(list(range(2, kernel.ndim)))
        weight = rearrange(flipped, "(groups o) i ... -> (groups i) o ...", groups=layer.groups)
    else:
        options |= {"stride": layer.geometry.stride, "padding_mode": choice.padding_mode}
        conv, weight = (
            CONVOLUTIONS[layer.dims](layer.in_channels, layer.out_channels, **options),
            kernel,
        )
    if not math.isfinite(weight.to(parameter.dtype).abs().max().item()):
        raise ConversionError(
            f"cannot convert: the kernel would not be finite in {parameter.dtype}"
        )
    conv.weight.copy_(weight).requires_grad_(parameter.requires_grad)
    if layer.bias is not None and conv.bias is not None:
        conv.bias.copy_(layer.bias).requires_grad_(layer.bias.requires_grad)
    return conv.train(layer.training)


class Replacement(NamedTuple):
    """A convolution for an attention layer, and what it misses."""

    conv: AnyConvolution | NormalisedConv
    kernel: Float[
        Tensor, "..."
    ]  # In float64; of a normalised one, what rounding of the scores adds to the errors
    errors: Float[
        Tensor, "heads queries"
    ]  # Bound on Σ_k |A_h[q, k] − Ã_h[q, k]|; one for all queries where the same
    leak: float  # Largest share of attention outside the window, of any head and query
    any_size: bool  # Whether this holds for images of any size


def normalise(layer: RelativeAttention, sizes: tuple[int, ...], mass: float) -> Replacement:
    """Makes the normalised convolution of heads that need not be hard.

    The box of the kernels leaves at most `mass` of the attention of any query outside. A query at the border may see
    only the tail of a kernel, of which the displacement 0 is the highest part that it sees in any case; numbers that
    are too small there for the dtype raise ConversionError.
    """
    geometry, encoding, like = layer.geometry, layer.encoding, next(layer.values.parameters())
    kind = torch.promote_types(like.dtype, torch.float32)
    axes, separable = unit_steps(geometry, sizes), isinstance(encoding, AxisAdditiveEncoding)
    with without_autocast(like.device):
        if isinstance(encoding, AxisAdditiveEncoding):
            tables, parts = (
                encoding.axis_tables(axes, torch.float64, like.device),
                [(axis,) for axis in axes],
            )
        else:
            tables, parts = [encoding.table(axes, torch.float64, like.device)], [axes]
    tables = [
        table - table.flatten(1).amax(1).view(-1, *(1,) * (table.ndim - 1)) for table in tables
    ]
    here = [
        table[(..., *(-axis.lowest for axis in part))]
        for table, part in zip(tables, parts, strict=True)
    ]
    below, (deepest, free) = -torch.stack(here).sum(0), _RANGE[kind]
    depth, lift = below.max().item(), (below - free).clamp(min=0)
    if not depth <= deepest:
        raise ConversionError(
            f"cannot convert {type(layer).__name__} exactly at borders: there a head looks so far beyond the image that"
            f" what it sees has e^-{depth:.4g} of its weight, and {kind} holds e^-{deepest} at least"
        )
    box, scores, leak = list[tuple[int, int]](), list[Tensor](), 0.0
    errors, rounded = (torch.zeros_like(here[0]) for _ in range(2))
    for table, part in zip(tables, parts, strict=True):
        attention = _map_scores(table, part)
        low, high = replace(attention, weights=attention.shares()).trimmed(mass / len(parts))
        reach = [max(-first, last, 0) for first, last in zip(low, high, strict=True)]
        ends = [
            (max(-r, axis.lowest), min(r, axis.highest))
            for r, axis in zip(reach, part, strict=True)
        ]
        sides = [
            slice(a - axis.lowest, b - axis.lowest + 1)
            for (a, b), axis in zip(ends, part, strict=True)
        ]
        inside, off, outside = (
            (slice(None), *sides),
            torch.zeros_like(table),
            attention.weights.clone(),
        )
        lifted = (table + lift.view(-1, *(1,) * len(part)) / len(parts))[inside]
        held = lifted.to(kind)
        off[inside], outside[inside] = (held.double() - lifted).abs().nan_to_num(), 0
        moved, missed = (
            (_sum_over_keys(share, part) / attention.totals).flatten(1).amax(1)
            for share in (attention.weights * off, outside)
        )
        box, scores, leak = box + ends, [*scores, held], leak + missed.max().item()
        errors, rounded = errors + 2 * missed, rounded + 2.01 * moved
    shared = {
        "head_width": layer.head_width,
        "groups": layer.groups,
        "bias": layer.bias is not None,
    }
    conv = NormalisedConv(
        layer.in_channels,
        layer.out_channels,
        layer.num_heads,
        box=box,
        separable=separable,
        device=like.device,
        dtype=like.dtype,
        **shared,
        **asdict(geometry),
    )
    factors = [factor for factor in layer.values.factors()[:2] if factor is not None]
    with torch.no_grad():
        for mine, factor, own in zip(
            conv.values.parameters(), factors, layer.values.parameters(), strict=True
        ):
            mine.copy_(factor).requires_grad_(own.requires_grad)
        for mine, own in zip(conv.scores, scores, strict=True):
            mine.copy_(own)
        if conv.bias is not None and layer.bias is not None:
            conv.bias.copy_(layer.bias).requires_grad_(layer.bias.requires_grad)
    conv.scores.requires_grad_(any(parameter.requires_grad for parameter in encoding.parameters()))
    return Replacement(conv.train(layer.training), rounded, errors[:, None], leak, any_size=False)


def require_borders(borders: str, kernel_size: PerAxis | None, padding_mode: str | None) -> None:
    """Raises unless `borders` is known, and leaves the window and the padding to choose."""
    if borders not in _BORDERS:
        raise UnknownNameError("borders", borders, _BORDERS)
    if borders != "plain" and not kernel_size is padding_mode is None:
        raise ArgumentError(
            must_be("borders", '"plain" with a kernel_size or a padding_mode', borders)
        )


def attention_to_conv(
    layer: nn.Module,
    *,
    kernel_size: PerAxis | None = None,
    mass: float | None = None,
    spatial: PerAxis | None = None,
    padding_mode: str | None = None,
    borders: str = "plain",
) -> tuple[AnyConvolution | NormalisedConv, Certificate]:
    """Makes the convolution that computes an attention layer without content, as exactly as a window allows.

    The kernel is `K[δ] = Σ_h ā_h(δ) W_h`, where ā_h is the attention far from borders. Hard heads give the convolution
    back exactly, with its kernel size, stride, padding, padding mode, dilation and groups; a layer with an input
    dilation becomes a transposed convolution. Other heads lose the attention outside the window, and near borders the
    softmax differs from a convolution:
    `|y_attention − y_convolution| ≤ max|x̃| · max_{o,q} Σ_h λ_h(q) ‖W_h[o]‖₁`, where λ_h(q) is, with zeros around the
    image, the share of ā_h that is not at pixels inside the window.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, Theorem 1, read backwards; `docs/explanation/theory.md` §5.

    Args:
        layer: RelativeAttention1d/2d/3d without content, or a gated one whose gate is closed up to rounding; it is not
            changed.
        kernel_size: Taps per axis, ≥ 1. None takes the layer's own window, or the smallest one that leaves at most
            `mass` outside.
        mass: Largest share in (0, 1) of a head's attention that may lie outside the window. None means eps of the
            weights' dtype.
        spatial: Sizes of the images. Needed if attention does not fall off with distance, because it then depends on
            them. None takes the extent of a table, or a grid that is large enough for the heads.
        padding_mode: Padding of the convolution if the layer itself does not pad: "zeros", "reflect", "replicate" or
            "circular". None takes "zeros" or "replicate", whichever is closer to the layer on random pixels of mean 1
            and deviation 1. A layer that pads keeps its own mode.
        borders: "plain" makes a convolution of torch, which errs at borders unless heads are hard or see zeros around.
            "exact" makes a `NormalisedConv` where that errs: `y = b + Σ_h W_h (g_h ⋆ x) / (g_h ⋆ 1)` with g_h = exp s_h
            in a box that leaves at most `mass` / 4 of any query's attention outside. "auto" does so where the dtype
            allows it. Both choose the window and the padding themselves.

    Returns:
        nn.Conv1d/2d/3d or nn.ConvTranspose1d/2d/3d, or a `NormalisedConv`, with the layer's dtype, device and mode, and
        the certificate. A transposed convolution of stride 1 comes back as a plain convolution.

    Raises:
        UnsupportedModelError: The layer is of another class, has hooks, or its numbers are not finite.
        ConversionError: Its scores depend on content, its gate is open, no torch convolution has its geometry, there
            is not enough memory to compare the two, or with "exact" a head looks too far beyond the image.
        ArgumentError: An argument is out of range, or `spatial` is needed. UnknownNameError for an unknown mode.

    Example:
        >>> from convattn.convert import conv_to_attention
        >>> conv = nn.Conv2d(3, 5, kernel_size=3, padding=1)
        >>> again, certificate = attention_to_conv(conv_to_attention(conv)[0])
        >>> again, certificate.exact, torch.equal(again.weight, conv.weight)
        (Conv2d(3, 5, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1)), True, True)
    """
    layer = _require_convertible(layer)
    content_share = _closed_gate(layer)
    dtype = next(layer.values.parameters()).dtype
    taps = (
        None if kernel_size is None else axis_lists("kernel_size", kernel_size, layer.dims, least=1)
    )
    if (
        taps is not None
        and math.prod(taps) * layer.in_channels * layer.out_channels > _MOST_NUMBERS
    ):
        raise ArgumentError(
            must_be("kernel_size", f"one whose kernel has at most {_MOST_NUMBERS:,} numbers", taps)
        )
    require_share("mass", mass)
    mass = torch.finfo(dtype).eps if mass is None else mass
    require_borders(borders, kernel_size, padding_mode)
    modes = padding_modes(layer.geometry, padding_mode)
    sizes = choose_sizes(layer, mass, spatial)
    try:
        with torch.no_grad(), keep_random_state(layer):
            maps = copy.deepcopy(layer.values).double().maps()
            made = (
                None
                if borders == "plain"
                else _exact_at_borders(layer, sizes, maps, mass, modes, borders)
            )
            if made is None:
                choices = [choose_kernel(layer, sizes, maps, taps, mass, mode) for mode in modes]
                choice = closest_kernel(layer, sizes, choices)
                conv = make_convolution(layer, choice)
                made = Replacement(conv, choice.kernel, choice.errors, choice.leak, choice.any_size)
            return made.conv, certify_convolution(
                layer,
                made.conv,
                made.kernel,
                maps,
                sizes,
                leak=made.leak + content_share,
                errors=made.errors + 2 * content_share,
                any_size=made.any_size,
            )
    except (
        RuntimeError,
        MemoryError,
    ) as error:  # torch unfolds large kernels of volumes, pixel by pixel
        if not lacks_memory(error):
            raise
        raise ConversionError(
            f"cannot convert {type(layer).__name__}: there is not enough memory to compare it with the convolution that"
            " holds its attention; give a kernel_size, a larger mass or a smaller spatial size"
        ) from error


def _exact_at_borders(
    layer: RelativeAttention,
    sizes: tuple[int, ...],
    maps: Tensor,
    mass: float,
    modes: Sequence[str],
    borders: str,
) -> Replacement | None:
    """Makes a normalised convolution; None where a plain one is as exact, or where "auto" has to take one."""
    hard = [find_hard_heads(layer, unit_steps(layer.geometry, sizes), mode) for mode in modes]
    if any(heads is not None and heads.window(layer.geometry, None) is not None for heads in hard):
        return None
    eps = torch.finfo(next(layer.values.parameters()).dtype).eps
    try:
        if not layer.geometry.keeps_grid:  # the padding may hold all that heads look at
            with suppress(ConversionError):
                if (
                    choose_kernel(layer, sizes, maps, None, mass, modes[0]).errors.max().item()
                    <= eps
                ):
                    return None
        return normalise(layer, sizes, mass / 4)  # what is missed counts twice
    except ConversionError:
        if borders == "exact":
            raise
    return None


def _require_convertible(layer: nn.Module) -> RelativeAttention:
    """Returns the layer if its class, hooks, scores and parameters let it become a convolution; raises otherwise."""
    own_class = parametrize.type_before_parametrizations
    kind = own_class(layer).__name__
    if not isinstance(layer, RelativeAttention) or own_class(layer) not in ATTENTION_LAYERS:
        known = ", ".join(known.__name__ for known in ATTENTION_LAYERS)
        raise UnsupportedModelError(
            f"cannot convert {kind} to a convolution: supported layers are {known}"
        )
    if (values := own_class(layer.values)) not in (MergedValues, FactoredValues):
        expected = "its values must be MergedValues or FactoredValues"
        raise UnsupportedModelError(f"cannot convert {kind}: {expected}, but are {values.__name__}")
    if layer.content is not None and layer.gate is None:
        raise ConversionError(
            f"cannot convert {kind}: its scores depend on content, those of a convolution do not"
        )
    for name, module in layer.named_modules():
        found, where = [], f" at {name}" if name else ""
        if module._forward_hooks or module._forward_pre_hooks:
            found.append("forward hooks (pruning adds some)")
        if module in (layer, layer.values) and parametrize.is_parametrized(module):
            found.append("parametrizations (weight norm is one)")
        if found:
            why = f"it has {' and '.join(found)}{where}; make them permanent or remove them first"
            raise UnsupportedModelError(f"cannot convert {kind}: {why}")
    for name, numbers in layer.named_parameters():
        if (reason := why_not_numbers(name, numbers)) is not None:
            raise UnsupportedModelError(f"cannot convert {kind}: {reason}")
    return layer


def _closed_gate(layer: RelativeAttention) -> float:
    """Returns content's share of attention, max_h 1 − σ(λ_h) or |tanh(g_h)|; raises ConversionError above rounding."""
    if layer.gate is None:
        return 0.0
    gate = layer.gate.detach().double()
    shares = torch.tanh(gate).abs() if layer.gate_kind == "tanh" else torch.sigmoid(-gate)
    share, head = shares.max(0)
    allowed = torch.finfo(next(layer.values.parameters()).dtype).eps
    if share.item() > allowed:
        raise ConversionError(
            f"cannot convert {type(layer).__name__}: its gate is open: head {head.item()} gives"
            f" {share.item():.3g} of its attention to content, and only up to {allowed:.3g} counts as rounding;"
            f" layer.gate.data.fill_({0 if layer.gate_kind == 'tanh' else 40}) drops content"
        )
    return share.item()
