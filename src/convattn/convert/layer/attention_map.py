"""Attention as a function of the displacement, and the error of a convolution with that kernel."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from convattn.convert.layer.windows import Window
from convattn.encodings import AxisAdditiveEncoding, Encoding
from convattn.functional.autocast import without_autocast
from convattn.grid import Axis, Geometry


def unit_steps(geometry: Geometry, spatial: Sequence[int]) -> tuple[Axis, ...]:
    """Returns a layer's axes for images of given sizes, with a query at every pixel, whatever its stride."""
    axes = geometry.axes(spatial)
    spans = [d * (k - 1) for d, k in zip(geometry.dilation, geometry.kernel_size, strict=True)]
    return tuple(
        Axis(range(axis.queries[0], axis.queries[0] + axis.keys - span), axis.keys)
        for axis, span in zip(axes, spans, strict=True)
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
        for axis, low, taps, step in zip(self.axes, window.first, window.taps, window.steps, strict=True):
            offset = axis.displacements() - low
            marks.append((offset % step == 0) & (offset >= 0) & (offset <= (taps - 1) * step))
        grids = torch.meshgrid(*marks, indexing="ij")
        return torch.stack(grids).all(0).to(self.weights.device)

    def leak(self, window: Window) -> float:
        """Returns the largest share of ā that any query of any head sees outside a window."""
        return _sum_over_keys(self.weights * ~self.mask(window), self.axes).max().item()

    def left_out(self, window: Window) -> float:
        """Returns the largest share of ā of any head outside a window, over all displacements."""
        return (self.weights * ~self.mask(window)).flatten(1).sum(1).max().item()

    def errors(self, window: Window, geometry: Geometry, *, zeros: bool) -> Float[Tensor, "heads *queries"]:
        """Bounds Σ_k |A_h[q, k] − Ã_h[q, k]| per unit of the largest pixel; Ã is ā in the window and 0 elsewhere.

        `zeros` says that the image is padded with zeros; otherwise it is padded with other pixels.
        """
        inside = self.mask(window)
        pads = geometry.padding if zeros else ((0, 0),) * len(self.axes)
        held, missed = (_sum_over_keys(self.weights * mask, self.axes, pads) for mask in (inside, ~inside))
        # A ≥ ā on the keys: in the window it is too large by held (1/Z − 1), outside by missed / Z
        error = torch.where(self.totals > 0, (held * (1 - self.totals) + missed) / self.totals, 1.0)
        if zeros or window.within(geometry):
            return error
        kernel = (self.weights * inside).flatten(1).sum(1).view(-1, *(1,) * len(self.axes))
        return error + (kernel - _sum_over_keys(self.weights * inside, self.axes)).clamp(min=0)  # taps beyond the keys

    def kernel(
        self, window: Window, maps: Float[Tensor, "heads outputs channels"]
    ) -> Float[Tensor, "outputs channels *taps"]:
        """Returns K[δ] = Σ_h ā_h(δ) W_h at the taps of a window; 0 where no query sees δ."""
        weights = self.weights
        for dim, (axis, low, taps, step) in enumerate(
            zip(self.axes, window.first, window.taps, window.steps, strict=True), start=1
        ):
            index = torch.arange(taps) * step + low - axis.lowest
            seen = (index >= 0) & (index < weights.shape[dim])
            shape = [1] * weights.ndim
            shape[dim] = taps
            place = index.clamp(0, weights.shape[dim] - 1).to(weights.device)
            weights = weights.index_select(dim, place) * seen.to(weights).view(shape)
        return einsum(weights, maps, "heads ..., heads outputs channels -> outputs channels ...")

    def trimmed(self, mass: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the lowest and highest displacements of a box that leaves at most `mass` of each head outside.

        No side of the box can be moved inwards.
        """
        rest = torch.full((len(self.weights),), mass, dtype=torch.float64, device=self.weights.device)
        box = self.weights
        low, high = [axis.lowest for axis in self.axes], [axis.highest for axis in self.axes]
        while True:
            faces = [
                (box.select(dim, end).reshape(len(box), -1).sum(1), dim, end)
                for dim in range(1, box.ndim)
                for end in (0, -1)
                if box.shape[dim] > 1
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
        low, high = self.trimmed(mass)
        return all(
            2 * first >= axis.lowest and 2 * last <= axis.highest
            for first, last, axis in zip(low, high, self.axes, strict=True)
        )


def map_attention(encoding: Encoding, axes: tuple[Axis, ...], device: torch.device) -> AttentionMap:
    """Computes the attention of an encoding's heads in float64, for given queries and keys."""
    with torch.no_grad(), without_autocast(device):
        scores = _scores(encoding, axes, device)
        heads = (-1, *(1,) * len(axes))
        table = torch.exp(scores - scores.flatten(1).amax(1).view(heads))
        totals = _sum_over_keys(table, axes)
        most = totals.flatten(1).amax(1).view(heads)
    return AttentionMap(axes, table / most, totals / most)


def _scores(encoding: Encoding, axes: Sequence[Axis], device: torch.device) -> Float[Tensor, "heads *displacements"]:
    """Scores all displacements; scores that are sums over axes need only one small table per axis."""
    if not isinstance(encoding, AxisAdditiveEncoding):
        return encoding.table(axes, torch.float64, device)
    scores = None
    for dim, table in enumerate(encoding.axis_tables(axes, torch.float64, device), start=1):
        shape = [len(table)] + [1] * len(axes)
        shape[dim] = -1
        along = table.view(shape)
        scores = along if scores is None else scores + along
    assert scores is not None
    return scores


def _sum_over_keys(table: Tensor, axes: Sequence[Axis], pads: Sequence[tuple[int, int]] | None = None) -> Tensor:
    """Sums a table, for each query, over the displacements to the keys that it sees, without padding."""
    for dim, (axis, (before, after)) in enumerate(zip(axes, pads or [(0, 0)] * len(axes), strict=True), start=1):
        queries, delta = torch.tensor(list(axis.queries))[:, None], axis.displacements()[None]
        key = queries + delta
        sees = ((key >= max(before, 0)) & (key < axis.keys - max(after, 0))).to(table)
        table = (table.movedim(dim, -1) @ sees.mT).movedim(-1, dim)
    return table
