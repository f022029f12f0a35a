"""What is measured of one layer: sums over images, and the statistics of its heads that follow from them."""

from math import nan, prod
from operator import itemgetter

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads.convolution_fit import ConvolutionFit
from convattn.heads.directions import Directions
from convattn.heads.head_report import HeadStatistics, LayerStatistics
from convattn.heads.head_sums import HeadSums, Pairs, empty_sums, make_pairs, sum_heads
from convattn.heads.jackknife import GROUPS, Estimate, jackknife
from convattn.heads.kernel_fit import KernelFit, everywhere_alike
from convattn.heads.layout import AttentionCall
from convattn.wording import ITSELF

_FLAT = 1e-14
"""Variance, as a share of the squared mean, below which weights are the same everywhere but for rounding in float32."""

_ROUNDING = 2.0**-20
"""Share of a sum of squares that rounding of its parts in float32 may be, a few last places of each."""


class LayerMeasure:
    """Sums of one layer over images, and what its calls say about it.

    Attributes:
        kind: Full name of its class.
        grid_source: Name of the convolution whose output has its grid; empty if none has.
        kernel_size: Taps along each axis of the convolution.
        bytes: Memory of the weights of one image.
        pairs: Its pairs of queries and keys.
        sums: Sums over the images.
        kernels: Weights by displacement.
        convolution: The best convolution; None if inputs or outputs do not lie on the grid of the queries.
        normalised: Whether the rows of all calls sum to 1.
        masked: Whether masks differed between images.
        error: Largest difference of weights × values to the module's own result.
        budget: What rounding explains there.
    """

    def __init__(self, call: AttentionCall, kernel_size: int) -> None:
        """Starts without images for a layer of which this is the first call, which `add` then adds."""
        grid = call.layout.grid
        self.kind = call.kind
        self.grid_source = call.grid_source
        self.kernel_size = kernel_size
        self.bytes = call.weights[0].numel() * 4
        self.pairs = make_pairs(call.layout, call.name or ITSELF)
        self.sums = empty_sums(call, self.pairs, GROUPS)
        self.kernels = KernelFit()
        self.convolution = None
        if call.inputs is not None and call.outputs is not None:
            positions = prod(grid)
            if call.inputs.shape[1] == call.outputs.shape[1] == positions:
                self.convolution = ConvolutionFit(grid, kernel_size)
        self.normalised = True
        self.masked = False
        self.error = call.error
        self.budget = call.budget

    def add(
        self, call: AttentionCall, members: Int64[Tensor, " images"], *, held_out: bool
    ) -> None:
        """Adds a batch; `members` are the groups of its images, held out from the fits or not."""
        name = call.name or ITSELF
        if not self.pairs.fits(call.layout):
            raise UnsupportedModelError(
                f"{name}: queries or keys lie elsewhere than for the images before"
            )
        if call.weights.shape[2] != self.sums.squares.shape[1]:
            raise UnsupportedModelError(
                f"{name}: it has another number of heads than for the images before"
            )
        if held_out:
            self.kernels.score(call, self.pairs, self.sums)
        added = sum_heads(call, self.pairs, members, GROUPS)
        if not bool(torch.isfinite(added.squares).all()):
            raise ArgumentError(
                f"images must give finite attention, but weights of {name} are not finite"
            )
        self.sums = self.sums.plus(added)
        if self.convolution is not None:
            assert call.inputs is not None
            assert call.outputs is not None
            take = self.convolution.score if held_out else self.convolution.fit
            take(call.inputs, call.outputs)
        if call.error - call.budget > self.error - self.budget:
            self.error = call.error
            self.budget = call.budget
        self.normalised &= call.normalised
        mask_before = self.pairs.layout.allowed is not None
        mask_now = call.layout.allowed is not None
        self.masked |= call.allowed is not None or mask_now != mask_before


def layer_statistics(layer: LayerMeasure, radius: int | None) -> LayerStatistics:
    """Computes the statistics of a layer in one run from its sums over images (docs/explanation/theory.md §7).

    The jackknife leaves out one group of images after another: σ² = (g − 1)/g Σ_j (θ_j − θ̄)², θ_j the statistic without
    group j. Where a statistic is biased by more than that, the jackknife takes the bias away.

    Args:
        layer: The layer, measured.
        radius: Largest displacement of the kernels along each axis; None leaves kernels out.

    Returns:
        The statistics.
    """
    pairs = layer.pairs
    kernels = layer.kernels
    total = layer.sums.map(lambda part: part.sum(dim=0))
    totals = (total, *_without_each_group(layer.sums))
    hardest = torch.stack([_hardest(sample, pairs) for sample in totals])
    hard = hardest[0]
    hard_shifts = pairs.displacements[hardest]
    inside = pairs.within(0 if radius is None else radius)
    distance, effective_positions = everywhere_alike(pairs)
    directions = Directions(total, pairs)
    samples = []
    for sample in totals:
        numbers = _head_numbers(sample, pairs, hard, inside)
        numbers |= directions.shares(sample)
        numbers["evenness"] = numbers["effective_positions"] / effective_positions
        numbers["nearness"] = 1 - numbers["distance"] / distance
        samples.append(numbers)
    weights = total.by_displacement[:, inside] / (total.images * pairs.counts[inside])
    prefix_weights = total.prefix / (total.images * pairs.queries)
    prefix_maps = total.prefix_maps / total.images
    estimates = {}
    for name in samples[0].keys() - {"shift", "shift_invariance"}:
        estimates[name] = _estimates([sample[name] for sample in samples])
    invariance = [sample["shift_invariance"] for sample in samples]
    estimates["shift_invariance"] = _without_bias(invariance)
    along_axes = torch.stack([sample["shift"] for sample in samples], -1)
    shifts = [_estimates([*axis.T]) for axis in along_axes.unbind(1)]
    shift_errors = jackknife(hard_shifts[1:]).tolist()
    heads = []
    for head in range(len(weights)):
        numbers = {name: of_heads[head] for name, of_heads in estimates.items()}
        has_kernel = radius is not None
        heads.append(
            HeadStatistics(
                head=head,
                shift=tuple(axis[head] for axis in shifts),
                hard_shift=tuple(hard_shifts[0, head].tolist()),
                hard_shift_error=tuple(shift_errors[head]),
                side=directions.side(head),
                line=int(directions.lines[head]),
                prefix_weights=tuple(prefix_weights[head].tolist()),
                prefix_maps=tuple(map(tuple, prefix_maps[head].tolist())),
                kernel=tuple(weights[head].tolist()) if has_kernel else (),
                position_kernel=kernels.kernel(head, inside) if has_kernel else (),
                position_score=kernels.estimate(head, GROUPS),
                **numbers,
            )
        )
    explained = Estimate(nan, nan)
    if layer.convolution is not None:
        explained = layer.convolution.estimate(GROUPS)
    return LayerStatistics(int(total.images), tuple(heads), explained)


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
    mass = sums.absolute.sum(dim=1)
    shift = size @ pairs.displacements / mass[:, None]
    around = pairs.displacements - shift[:, None]
    squared = around.square().sum(dim=2)
    entropy = (sums.entropies / mass).clamp_min(0)
    away = size @ pairs.lengths
    at_hard = sums.by_displacement.gather(1, hard[:, None])[:, 0]
    count = sums.images * pairs.counts.sum()
    variation = sums.squares - sums.centred.sum(dim=1).square() / count
    per_displacement = sums.centred.square() / (sums.images * pairs.counts)
    by_displacement = per_displacement.sum(dim=1)
    over_images = sums.over_images / sums.compared * sums.images
    level = sums.by_displacement.sum(dim=1) / count
    varies = variation > _FLAT * count * level.square() + _ROUNDING * sums.squares
    invariance = 1 - (sums.squares - by_displacement) / variation
    return {
        "shift": shift,
        "spread": ((size * squared).sum(dim=1) / mass).sqrt(),
        "entropy": entropy,
        "effective_positions": entropy.exp(),
        "hard_share": at_hard / (sums.images * pairs.counts[hard]),
        "shift_invariance": torch.where(varies, invariance, nan),
        "content_share": torch.where(varies, over_images / variation, nan),
        "distance": away / mass,
        "non_locality": away / (sums.images * pairs.queries),
        "prefix_share": sums.prefix_size / (mass + sums.prefix_size),
        "kernel_share": size[:, inside].sum(dim=1) / mass,
    }


def _hardest(sums: HeadSums, pairs: Pairs) -> Int64[Tensor, " heads"]:
    """Returns the displacement with the largest mean weight, of those that are frequent enough."""
    mean = sums.by_displacement / (sums.images * pairs.counts)
    return mean.masked_fill(~pairs.common, -torch.inf).argmax(dim=1)


def _without_each_group(sums: HeadSums) -> list[HeadSums]:
    """Returns the sums over all groups but one, for each that has images; none if there is only one."""
    present = (sums.images > 0).nonzero()[:, 0].tolist()
    if len(present) < 2:
        return []
    others = sums.map(lambda part: part.sum(dim=0) - part)
    return [others.map(itemgetter(left)) for left in present]


def _estimates(values: list[Float64[Tensor, " heads"]]) -> list[Estimate]:
    """Makes an estimate for each head of a statistic of all images, followed by those without each group."""
    whole = values[0].tolist()
    errors = jackknife(torch.stack(values)[1:]).tolist()
    return [Estimate(*pair) for pair in zip(whole, errors, strict=True)]


def _without_bias(values: list[Float64[Tensor, " heads"]]) -> list[Estimate]:
    """Makes estimates as `_estimates` does, less the bias that the jackknife sees: g θ − (g − 1) mean_j θ_j.

    Mean weights of displacements are fitted to the same images that they then explain; of pure content they explain
    a share of about displacements / (pairs × images), which is larger than the standard error.
    """
    groups = len(values) - 1
    if groups >= 2:
        mean = torch.stack(values[1:], -1).mean(-1)
        values = [groups * values[0] - (groups - 1) * mean, *values[1:]]
    return _estimates(values)
