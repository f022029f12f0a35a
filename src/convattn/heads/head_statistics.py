"""Statistics of heads (docs/theory.md §7) from sums over images, with the standard errors of a jackknife.

The jackknife leaves out one group of images after another: σ² = (g − 1)/g Σ_j (θ_j − θ̄)², θ_j the statistic without
group j. Where a statistic is biased by more than that, the jackknife takes the bias away.
"""

from collections.abc import Callable, Mapping
from itertools import product

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from convattn.heads.head_report import Estimate, HeadStatistics
from convattn.heads.head_sums import HeadSums, Pairs, jackknife
from convattn.heads.kernel_fit import KernelFit

_FLAT = 1e-14
"""Variance, as a share of the squared mean, below which weights are the same everywhere but for rounding in float32."""

_ROUNDING = 2.0**-20
"""Share of a sum of squares that rounding of its parts in float32 may be, a few last places of each."""


def head_statistics(
    sums: HeadSums, pairs: Pairs, fit: KernelFit, radius: int | None
) -> tuple[tuple[HeadStatistics, ...], Callable[[int], tuple[Estimate, Estimate]]]:
    """Computes the statistics of all heads of a layer.

    Args:
        sums: Sums over images.
        pairs: The layer's pairs.
        fit: Weights by displacement, fitted and scored.
        radius: Largest displacement of the kernels along each axis; None leaves kernels out.

    Returns:
        The heads; and a function that gives the coverage of the taps of a kernel size, by mean shifts and by hard
        heads.
    """
    everything = sums.map(lambda part: part.sum(dim=0))
    hard = _hardest(everything, pairs)
    samples = [everything, *_without_each_group(sums)]
    found = [numbers_of(sample, pairs, hard) for sample in samples]
    inside = pairs.within(0 if radius is None else radius)
    kernels = everything.by_displacement[:, inside] / (everything.images * pairs.counts[inside])
    shares = [_share_within(sample, inside) for sample in samples]
    per_image = everything.images * pairs.queries
    heads = []
    for head in range(kernels.shape[0]):
        numbers = {name: _estimate([sample[name][head] for sample in found]) for name in found[0] if name != "shift"}
        numbers["shift_invariance"] = _without_bias([sample["shift_invariance"][head] for sample in found])
        shift = tuple(
            _estimate([sample["shift"][head, axis] for sample in found]) for axis in range(pairs.displacements.shape[1])
        )
        heads.append(
            HeadStatistics(
                head=head,
                shift=shift,
                hard_shift=tuple(pairs.displacements[hard[head]].tolist()),
                prefix_weights=tuple((everything.prefix[head] / per_image).tolist()),
                prefix_maps=tuple(map(tuple, (everything.prefix_maps[head] / everything.images).tolist())),
                kernel=() if radius is None else tuple(kernels[head].tolist()),
                position_kernel=() if radius is None else fit.kernel(head, inside),
                position_score=fit.estimate(head, len(sums.images)),
                kernel_share=_estimate([share[head] for share in shares]),
                **numbers,
            )
        )

    def coverage(kernel_size: int) -> tuple[Estimate, Estimate]:
        by_shift = [covered(sample["shift"], kernel_size) for sample in found]
        own = pairs.displacements[hard]
        by_hard = [covered(own[sample["hard_share"] > 0.5], kernel_size) for sample in found]
        return _estimate(by_shift), _estimate(by_hard)

    return tuple(heads), coverage


def numbers_of(
    sums: HeadSums, pairs: Pairs, hard: Int64[Tensor, " heads"]
) -> Mapping[str, Float64[Tensor, "heads ..."]]:
    """Computes the numbers of all heads from sums over one set of images; `hard` is the displacement of each."""
    size, mass = sums.absolute, sums.absolute.sum(dim=1)
    shift = size @ pairs.displacements / mass[:, None]
    squared = torch.stack([(pairs.displacements - centre).square().sum(dim=1) for centre in shift])
    entropy = sums.entropies / mass
    away = size @ pairs.lengths
    own = sums.by_displacement.gather(1, hard[:, None])[:, 0]
    count = sums.images * pairs.counts.sum()
    total = sums.squares - sums.centred.sum(dim=1).square() / count
    explained = (sums.centred.square() / (sums.images * pairs.counts)).sum(dim=1)
    level = sums.by_displacement.sum(dim=1) / count
    varies = total > _FLAT * count * level.square() + _ROUNDING * sums.squares
    queries = sums.images * pairs.queries
    return {
        "shift": shift,
        "spread": ((size * squared).sum(dim=1) / mass).sqrt(),
        "entropy": entropy.clamp_min(0),
        "effective_positions": entropy.clamp_min(0).exp(),
        "hard_share": own / (sums.images * pairs.counts[hard]),
        "shift_invariance": torch.where(varies, 1 - (sums.squares - explained) / total, torch.nan),
        "content_share": torch.where(varies, sums.over_images / sums.compared * sums.images / total, torch.nan),
        "distance": away / mass,
        "non_locality": away / queries,
        "prefix_share": sums.prefix_size / (mass + sums.prefix_size),
    }


def covered(shifts: Float64[Tensor, "heads axes"], kernel_size: int) -> Float64[Tensor, ""]:
    """Returns the share of the taps of a kernel that a head's shift matches within half a cell, one head for each tap.

    A shift counts for the tap nearest to it, half-way between two for the first, so that no head counts twice.
    """
    reach = (kernel_size - 1) / 2
    axes = shifts.shape[1]
    taps = torch.tensor(list(product(*[[step - reach for step in range(kernel_size)]] * axes)), dtype=torch.float64)
    distance, nearest = torch.cdist(taps, shifts.cpu()).min(dim=0)
    return torch.tensor(len(nearest[distance <= 0.5].unique()) / len(taps), dtype=torch.float64)


def _hardest(sums: HeadSums, pairs: Pairs) -> Int64[Tensor, " heads"]:
    """Returns the displacement with the largest mean weight, of those that are frequent enough."""
    mean = sums.by_displacement / (sums.images * pairs.counts)
    return mean.masked_fill(~pairs.common, -torch.inf).argmax(dim=1)


def _share_within(sums: HeadSums, inside: Int64[Tensor, " kernel"]) -> Float64[Tensor, " heads"]:
    return sums.absolute[:, inside].sum(dim=1) / sums.absolute.sum(dim=1)


def _without_each_group(sums: HeadSums) -> list[HeadSums]:
    """Returns the sums over all groups but one, for each that has images; none if there is only one."""
    present = (sums.images > 0).nonzero()[:, 0].tolist()
    if len(present) < 2:
        return []
    return [sums.map(lambda part, left=left: part.sum(dim=0) - part[left]) for left in present]


def _without_bias(values: list[Tensor]) -> Estimate:
    """Makes an estimate as `_estimate` does, less the bias that the jackknife sees: g θ − (g − 1) mean_j θ_j.

    Mean weights of displacements are fitted to the same images that they then explain; of pure content they explain
    a share of about displacements / (pairs × images), which is larger than the standard error.
    """
    found = _estimate(values)
    groups = len(values) - 1
    if groups < 2:
        return found
    mean = float(torch.stack(values[1:]).double().mean())
    return Estimate(groups * found.value - (groups - 1) * mean, found.error)


def _estimate(values: list[Tensor]) -> Estimate:
    """Makes an estimate of a statistic of all images, followed by those without each group."""
    whole, *others = torch.stack([value.double().cpu() for value in values]).tolist()
    return Estimate(whole, jackknife(others))
