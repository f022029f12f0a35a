"""Attention of heads without content, as one number per head and displacement, and what a window of it leaves out."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from convattn.encodings import AxisAdditiveEncoding
from convattn.functional.torch_modes import without_autocast
from convattn.grid import Axis, Geometry, Window
from convattn.layers import RelativeAttention


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

    @classmethod
    def of(cls, layer: RelativeAttention, axes: tuple[Axis, ...]) -> "AttentionMap":
        """Computes the attention of a layer's heads in float64, for given queries and keys."""
        with torch.no_grad():
            (scores, _), *others = score_tables(layer, axes)
            for table, _ in others:
                before = (1,) * (scores.ndim - 1)
                scores = scores[..., None] + table.view(len(table), *before, -1)
            return cls.of_scores(scores, axes)

    @classmethod
    def of_scores(
        cls, scores: Float[Tensor, "heads *displacements"], axes: tuple[Axis, ...]
    ) -> "AttentionMap":
        """Computes the attention of scores."""
        table = torch.exp(scores - highest(scores))
        totals = sum_over_keys(table, axes)
        most = highest(totals)
        return cls(axes, table / most, totals / most)

    def outside(self, window: Window) -> Float[Tensor, "heads *displacements"]:
        """Returns ā without the taps of a window."""
        marks = []
        for axis, taps in zip(self.axes, window.taps, strict=True):
            marks.append(torch.isin(axis.displacements(), torch.tensor(taps)))
        grids = torch.meshgrid(*marks, indexing="ij")
        return self.weights * ~torch.stack(grids).all(0).to(self.weights.device)

    def leak(self, window: Window) -> float:
        """Returns the largest share of attention that any query of any head gives to keys outside a window."""
        outside = sum_over_keys(self.outside(window), self.axes)
        return (outside / self.totals).nan_to_num(1).max().item()

    def left_out(self, window: Window) -> float:
        """Returns the largest share of ā of any head outside a window, over all displacements."""
        return self.outside(window).flatten(1).sum(1).max().item()

    def shares(self) -> Float[Tensor, "heads *displacements"]:
        """Returns max_q A_h[q, q + δ], the largest share that any query gives to the key at each displacement."""
        least = self.totals  # becomes the smallest Z_h of the queries that see a displacement
        for dim, axis in enumerate(self.axes, start=1):
            up_to_query = least.cummin(dim).values
            from_query = least.flip(dim).cummin(dim).values.flip(dim)
            delta = axis.displacements(least.device)
            last = len(axis.queries) - 1
            last_that_sees = (axis.keys - 1 - delta - axis.queries[0]).clamp(0, last)
            first_that_sees = (-delta - axis.queries[0]).clamp(0, last)
            ahead = with_axes(delta >= 0, least.ndim - 1 - dim)
            least = torch.where(
                ahead,
                up_to_query.index_select(dim, last_that_sees),
                from_query.index_select(dim, first_that_sees),
            )
        return self.weights / least

    def errors(
        self, window: Window, geometry: Geometry, *, zeros: bool
    ) -> Float[Tensor, "heads *queries"]:
        """Bounds Σ_k |A_h[q, k] − Ã_h[q, k]| per unit of the largest pixel; Ã is ā in the window and 0 elsewhere.

        `zeros` says that the image is padded with zeros; otherwise it is padded with other pixels.
        """
        outside = self.outside(window)
        inside = self.weights - outside
        pads = geometry.padding if zeros else None
        held = sum_over_keys(inside, self.axes, pads)
        missed = sum_over_keys(outside, self.axes, pads)
        # A ≥ ā on the keys: in the window it is too large by held (1/Z − 1), outside by missed / Z
        too_much = held * (1 - self.totals) + missed
        error = torch.where(self.totals > 0, too_much / self.totals, 1.0)
        if zeros or window.within(geometry):
            return error
        kernel = with_axes(inside.flatten(1).sum(1), len(self.axes))
        beyond_keys = kernel - sum_over_keys(inside, self.axes)
        return error + beyond_keys.clamp(min=0)

    def kernel(
        self, window: Window, maps: Float[Tensor, "heads outputs channels"]
    ) -> Float[Tensor, "outputs channels *taps"]:
        """Returns K[δ] = Σ_h ā_h(δ) W_h at the taps of a window; 0 where no query sees δ."""
        weights = self.weights
        along = zip(self.axes, window.taps, strict=True)
        for dim, (axis, taps) in enumerate(along, start=1):
            last = weights.shape[dim] - 1
            index = torch.tensor(taps) - axis.lowest
            seen = ((index >= 0) & (index <= last)).to(weights)
            place = index.clamp(0, last).to(weights.device)
            seen = with_axes(seen, weights.ndim - 1 - dim)
            weights = weights.index_select(dim, place) * seen
        return einsum(weights, maps, "heads ..., heads outputs channels -> outputs channels ...")

    def trimmed(self, mass: float) -> list[range]:
        """Returns the displacements along each axis of a box that leaves at most `mass` of each head outside.

        No side of the box can be moved inwards.
        """
        box = self.weights
        rest = box.new_full((len(box),), mass)
        kept = [range(axis.lowest, axis.highest + 1) for axis in self.axes]
        while True:
            faces = []
            for dim in range(1, box.ndim):
                for end in (0, -1) if box.shape[dim] > 1 else ():
                    face = box.select(dim, end).reshape(len(box), -1).sum(1)
                    if (face <= rest).all():
                        faces.append((face.max().item(), dim, end, face))
            if not faces:
                return kept
            _, dim, end, face = min(faces, key=lambda item: item[0])
            rest = rest - face
            box = box.narrow(dim, 1 + end, box.shape[dim] - 1)
            kept[dim - 1] = kept[dim - 1][1 + end :][: box.shape[dim]]  # without the face

    def falls_off(self, mass: float) -> bool:
        """Tells whether half of this grid's displacements hold all but `mass` of each head."""
        along = zip(self.trimmed(mass), self.axes, strict=True)
        return all(
            axis.lowest <= 2 * kept[0] and 2 * kept[-1] <= axis.highest for kept, axis in along
        )


def score_tables(
    layer: RelativeAttention, axes: tuple[Axis, ...]
) -> list[tuple[Tensor, tuple[Axis, ...]]]:
    """Returns scores in float64, one table for each axis if they are sums over axes, each with its axes."""
    encoding = layer.encoding
    device = layer.like.device
    with without_autocast(device):
        if isinstance(encoding, AxisAdditiveEncoding):
            tables = encoding.axis_tables(axes, torch.float64, device)
            return [(table, (axis,)) for table, axis in zip(tables, axes, strict=True)]
        return [(encoding.table(axes, torch.float64, device), axes)]


def highest(table: Tensor) -> Tensor:
    """Returns the largest number of each head, with as many axes as the table has."""
    return with_axes(table.flatten(1).amax(1), table.ndim - 1)


def with_axes(numbers: Tensor, count: int) -> Tensor:
    """Adds axes of length 1 behind a single one."""
    return numbers.view(-1, *[1] * count)


def sum_over_keys(
    table: Tensor, axes: Sequence[Axis], pads: Sequence[tuple[int, int]] | None = None
) -> Tensor:
    """Sums a table, for each query, over the displacements to the keys that it sees, without padding."""
    if pads is None:
        pads = [(0, 0)] * len(axes)
    along = zip(axes, pads, strict=True)
    for dim, (axis, (before, after)) in enumerate(along, start=1):
        queries = torch.tensor(axis.queries)[:, None]
        keys = queries + axis.displacements()[None]
        first = max(before, 0)
        last = axis.keys - max(after, 0)
        sees = ((keys >= first) & (keys < last)).to(table)
        table = (table.movedim(dim, -1) @ sees.mT).movedim(-1, dim)
    return table
