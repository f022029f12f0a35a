"""What is measured of one layer: sums over images, and the statistics of its heads that follow from them."""

from collections.abc import Iterable, Sequence
from math import nan
from operator import itemgetter

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads.convolution_fit import ConvolutionFit
from convattn.heads.head_report import HeadStatistics, LayerStatistics
from convattn.heads.head_sums import HeadSums, Pairs, make_pairs, sum_heads
from convattn.heads.jackknife import Estimate, jackknife
from convattn.heads.kernel_fit import KernelFit
from convattn.heads.layout import AttentionCall
from convattn.wording import ITSELF

_FLAT = 1e-14
"""Variance, as a share of the squared mean, below which weights are the same everywhere but for rounding in float32."""

_ROUNDING = 2.0**-20
"""Share of a sum of squares that rounding of its parts in float32 may be, a few last places of each."""

_SAME = 0.5
"""Cells across a line within which a key lies in it."""


class LayerMeasure:
    """Sums of one layer over images, and what its calls say about it.

    Attributes:
        kind: Full name of its class.
        grid_source: Name of the convolution whose output has its grid; empty if none has.
        bytes: Memory of the weights of one image.
        pairs: Its pairs of queries and keys.
        sums: Sums over the images.
        kernels: Weights by displacement.
        convolution: The best convolution; not fitted if inputs or outputs do not lie on the grid of the queries.
        normalised: Whether the rows of all calls sum to 1.
        masked: Whether masks differed between images.
        error: Largest difference of weights × values to the module's own result.
        budget: What rounding explains there.
    """

    def __init__(
        self, call: AttentionCall, kernel_size: int, others: Iterable["LayerMeasure"] = ()
    ) -> None:
        """Starts without images for a layer of which this is the first call, which `add` then adds.

        Pairs are those of another layer with the same layout, if there is one.
        """
        self.kind = call.kind
        self.grid_source = call.grid_source
        self.bytes = call.weights[0].numel() * 4
        known = (layer.pairs for layer in others if layer.pairs.layout.equals(call.layout))
        self.pairs = next(known, None) or make_pairs(call.layout, call.name or ITSELF)
        self.sums = sum_heads(call.weights[:0], self.pairs, torch.arange(0))
        self.kernels = KernelFit()
        self.convolution = ConvolutionFit(call.layout.grid, kernel_size)
        self.normalised = True
        self.masked = False
        self.error = call.error
        self.budget = call.budget

    def add(
        self, call: AttentionCall, members: Int64[Tensor, " images"], *, held_out: bool
    ) -> None:
        """Adds a batch; `members` are the groups of its images, held out from the fits or not."""
        name = call.name or ITSELF
        heads = self.sums.squares.shape[1]
        if not self.pairs.fits(call.layout) or call.weights.shape[2] != heads:
            raise UnsupportedModelError(
                f"{name}: queries or keys lie elsewhere than for the images before, or heads are not as many"
            )
        if held_out:
            self.kernels.score(call.weights, self.pairs, self.sums)
        added = sum_heads(call.weights, self.pairs, members)
        if not torch.isfinite(added.squares).all():
            raise ArgumentError(
                f"images must give finite attention, but weights of {name} are not finite"
            )
        self.sums = self.sums.plus(added)
        if call.inputs is not None and call.outputs is not None:
            take = self.convolution.score if held_out else self.convolution.fit
            take(call.inputs, call.outputs)
        if call.error - call.budget > self.error - self.budget:
            self.error = call.error
            self.budget = call.budget
        self.normalised &= call.normalised
        mask = call.allowed if call.layout.allowed is None else call.layout.allowed
        self.masked |= mask is not None and self.pairs.layout.allowed is None


def layer_statistics(
    layer: LayerMeasure, radius: int, *, with_kernels: bool = True
) -> LayerStatistics:
    """Computes the statistics of a layer in one run from its sums over images (docs/explanation/theory.md §7).

    The jackknife leaves out one group of images after another: σ² = (g − 1)/g Σ_j (θ_j − θ̄)², θ_j the statistic without
    group j. Where a statistic is biased by more than that, the jackknife takes the bias away.

    Args:
        layer: The layer, measured.
        radius: Largest displacement of the kernels along each axis.
        with_kernels: Whether to keep the kernels.

    Returns:
        The statistics.
    """
    pairs = layer.pairs
    kernels = layer.kernels
    total = layer.sums.total()
    others = layer.sums.map(lambda part: part.sum(dim=0) - part)
    groups = layer.sums.images.nonzero()[:, 0].tolist()
    totals = (total, *[others.map(itemgetter(left_out)) for left_out in groups])
    hardest = torch.stack([_hardest(sample, pairs) for sample in totals])
    hard = hardest[0]
    hard_shifts = pairs.displacements[hardest]
    inside = pairs.within(radius)
    shown = inside if with_kernels else inside[:0]
    distance, effective_positions = pairs.everywhere_alike
    steps = pairs.displacements
    axes = steps.shape[1]
    side, side_share = _largest_part(torch.cat([steps < 0, steps > 0], dim=1), totals)
    line, line_share = _largest_part(steps.abs() < _SAME, totals)
    one_cell = torch.eye(axes, dtype=torch.int64)
    sides = torch.cat([-one_cell, one_cell])[side]
    samples = [_head_numbers(sample, pairs, hard, inside) for sample in totals]
    weights = total.by_displacement[:, shown] / (total.images * pairs.counts[shown])
    prefix_weights = total.prefix / (total.images * pairs.queries)
    prefix_maps = total.prefix_maps / total.images
    values = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    values["side_share"] = side_share
    values["line_share"] = line_share if axes > 1 else torch.full_like(line_share, nan)
    values["evenness"] = values["effective_positions"] / effective_positions
    values["nearness"] = 1 - values["distance"] / distance
    shifts = [_estimates(axis) for axis in values.pop("shift").unbind(2)]
    values["shift_invariance"] = _without_bias(values["shift_invariance"])
    estimates = {name: _estimates(of_samples) for name, of_samples in values.items()}
    shift_errors = jackknife(hard_shifts[1:]).tolist()
    heads = []
    for head in range(len(weights)):
        numbers = {name: of_heads[head] for name, of_heads in estimates.items()}
        heads.append(
            HeadStatistics(
                head=head,
                shift=tuple(axis[head] for axis in shifts),
                hard_shift=tuple(hard_shifts[0, head].tolist()),
                hard_shift_error=tuple(shift_errors[head]),
                side=tuple(sides[head].tolist()),
                line=int(line[head]),
                prefix_weights=tuple(prefix_weights[head].tolist()),
                prefix_maps=tuple(map(tuple, prefix_maps[head].tolist())),
                kernel=tuple(weights[head].tolist()),
                position_kernel=kernels.kernel(head, shown),
                position_score=kernels.estimate(head),
                **numbers,
            )
        )
    return LayerStatistics(int(total.images), tuple(heads), layer.convolution.estimate())


def _largest_part(
    parts: Bool[Tensor, "displacements parts"], totals: Sequence[HeadSums]
) -> tuple[Int64[Tensor, " heads"], Float64[Tensor, "samples heads"]]:
    """Returns which part of all displacements gets most of a head's attention in the first sample, and its shares."""
    of_parts = torch.stack([sample.absolute @ parts.double() for sample in totals])
    largest = of_parts[0].argmax(dim=1)
    of_largest = of_parts[:, range(len(largest)), largest]
    return largest, of_largest / torch.stack([sample.absolute.sum(dim=1) for sample in totals])


def _head_numbers(
    sums: HeadSums,
    pairs: Pairs,
    hard: Int64[Tensor, " heads"],
    inside: Int64[Tensor, " kernel"],
) -> dict[str, Float64[Tensor, "heads ..."]]:
    """Computes the numbers of all heads from sums over one set of images.

    `hard` is the displacement of each head, `inside` are those of the kernels.
    """
    size = sums.absolute
    mass = size.sum(dim=1)
    seen = sums.images * pairs.counts
    count = seen.sum()
    shift = size @ pairs.displacements / mass[:, None]
    around = pairs.displacements - shift[:, None]
    squared = around.square().sum(dim=2)
    entropy = (sums.entropies / mass).clamp_min(0)
    away = size @ pairs.lengths
    at_hard = sums.by_displacement.gather(1, hard[:, None])[:, 0]
    variation = sums.squares - sums.centred.sum(dim=1).square() / count
    by_displacement = (sums.centred.square() / seen).sum(dim=1)
    over_images = sums.over_images / sums.compared * sums.images
    level = sums.by_displacement.sum(dim=1) / count
    varies = variation > _FLAT * count * level.square() + _ROUNDING * sums.squares
    invariance = 1 - (sums.squares - by_displacement) / variation
    return {
        "shift": shift,
        "spread": ((size * squared).sum(dim=1) / mass).sqrt(),
        "entropy": entropy,
        "effective_positions": entropy.exp(),
        "hard_share": at_hard / seen[hard],
        "shift_invariance": torch.where(varies, invariance, nan),
        "content_share": torch.where(varies, over_images / variation, nan),
        "distance": away / mass,
        "non_locality": away / (sums.images * pairs.queries),
        "prefix_share": sums.prefix_size / (mass + sums.prefix_size),
        "kernel_share": size[:, inside].sum(dim=1) / mass,
    }


def _hardest(sums: HeadSums, pairs: Pairs) -> Int64[Tensor, " heads"]:
    """Returns the displacement with the largest mean weight, of those at least a quarter as frequent as any other.

    Means over fewer pairs are chance.
    """
    mean = sums.by_displacement / (sums.images * pairs.counts)
    rare = pairs.counts * 4 < pairs.counts.max()
    return mean.masked_fill(rare, -torch.inf).argmax(dim=1)


def _estimates(values: Float64[Tensor, "samples heads"]) -> list[Estimate]:
    """Makes an estimate for each head of a statistic of all images, followed by those without each group."""
    errors = jackknife(values[1:])
    return [*map(Estimate, values[0].tolist(), errors.tolist())]


def _without_bias(values: Float64[Tensor, "samples heads"]) -> Float64[Tensor, "samples heads"]:
    """Takes from the statistic of all images the bias that the jackknife sees: g θ − (g − 1) mean_j θ_j.

    Mean weights of displacements are fitted to the same images that they then explain; of pure content they explain
    a share of about displacements / (pairs × images), which is larger than the standard error.
    """
    whole, *others = values
    groups = len(others)
    if groups >= 2:
        whole = groups * whole - (groups - 1) * torch.stack(others, -1).mean(-1)
    return torch.stack([whole, *others])
