"""How far one tensor is from another, judged for each sample and each channel by its own scale and its own rounding.

One maximum for a whole tensor would let a mask of -1e9, a box in pixels or one bright image hide an error elsewhere. So
an element has peers: those of its sample, those of its channel, those of both. What rounding moves among the peers of
one kind, in honest runs, bounds what it explains at the element; the kind that bounds it most tightly counts.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from convattn.convert.network_runs import Parts
from convattn.wording import some

_FARTHEST = 6.0
"""Standard deviations of rounding that count as rounding: one of a billion elements is farther off."""

_UNLUCKY = 1e-4
"""How unlikely it is that the largest of some errors is smaller than taken for."""

_ALIKE = 1 / 8
"""Errors of at least this share of the largest one of a group are of its kind."""

_SAME_BRIGHTNESS = 1e3
"""Samples whose outputs differ by no larger a factor share the scale of a channel."""

_SATURATED = 1 / 2
"""Share of the largest number of a dtype from which an output stands for infinity."""

_MOST = 1 / 4
"""Power of eps. If rounding may change an output by more than this share of its sample's values, little is shown."""


class Difference(NamedTuple):
    """How far an output is from the reference, at one element."""

    error: float = 0.0  # Difference
    rounding: float = 0.0  # Difference that rounding explains
    largest: float = 0.0  # Scale of the reference: the largest absolute value of such elements
    # Whether nothing differs or rounding is below the sample's values, and both networks agree in float64
    same: bool = True

    @property
    def relative(self) -> float:
        """Error over scale; not a number counts as infinite."""
        if self.error == 0:
            return 0.0
        if self.largest == 0 or math.isnan(self.error / self.largest):
            return math.inf
        return self.error / self.largest

    @property
    def share(self) -> float:
        """Error over rounding; infinite where that shows nothing."""
        if not self.same or not math.isfinite(self.error) or not math.isfinite(self.rounding):
            return math.inf
        if self.rounding == 0:
            return math.inf if self.error else 0.0
        return self.error / self.rounding


def errors_of(x: Tensor, exact: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Returns |x − exact| in float64; 0 where both are infinite, or as good as that, and of one sign."""
    wide = x.double()
    errors = (wide - exact).abs()
    beyond = saturated(x) & saturated(exact) & (wide.sign() == exact.sign())
    return errors.masked_fill(beyond, 0.0)


def saturated(x: Tensor) -> Bool[Tensor, "*shape"]:
    """Marks what is infinite, or fills in for infinity: a mask of the lowest number."""
    return x.abs() >= _SATURATED * torch.finfo(x.dtype).max


class Roundings:
    """What rounding moves in one output, over several runs.

    Example:
        >>> exact = torch.tensor([[1.0, 1e9], [2.0, 1e9]], dtype=torch.float64)
        >>> roundings = Roundings(exact)
        >>> for moved in (1.0, -1.0, 0.5, -0.7):
        ...     roundings.add(exact + moved * torch.tensor([1e-7, 60.0]))
        >>> (roundings.allowed(1e-7)[:, 0] < 1e-5).all().item()
        True
    """

    def __init__(self, exact: Float[Tensor, "*shape"]) -> None:
        """Takes what the runs are compared with, unless another reference is given with them."""
        self._exact = exact
        # of each group, the largest error in every run, and how many are alike
        self._runs = {pooled: list[tuple[Tensor, Tensor]]() for pooled in _groups(exact.ndim)}

    def add(self, x: Tensor, exact: Tensor | None = None) -> None:
        """Adds a run, with its own reference if it has one."""
        errors = errors_of(x, self._exact if exact is None else exact)
        for pooled, runs in self._runs.items():
            most = _most(errors, pooled)
            alike = errors > _ALIKE * most
            runs.append((most, alike.sum(pooled, keepdim=True) if pooled else alike.long()))

    def allowed(self, eps: float) -> Float[Tensor, "*shape"]:
        """Returns the error of each element that rounding explains; `eps` is that of the dtype."""
        bound = torch.full_like(self._exact, math.inf)
        for runs in self._runs.values():
            most, counts = map(torch.stack, zip(*runs, strict=True))
            highest = most.amax(0)
            counts = counts * (most > _ALIKE * highest)
            bound = torch.minimum(bound, highest * _margin(counts.sum(0)))
        if eps <= torch.finfo(torch.float64).eps:
            bound = 2 * bound  # the reference rounds as much
        return bound + 2 * eps * scales(self._exact)


def _margin(count: Tensor) -> Tensor:
    """Returns how many times the largest of `count` errors another one may be: 2 for many, more if they are few.

    The errors of rounding are taken for normal. Then the largest of m is hardly ever below the quantile q of a single
    one, with P(|z| < q)ᵐ = 1e-4, and hardly any is beyond six standard deviations.
    """
    below = _UNLUCKY ** (1 / count.clamp(min=4).double())
    return (_FARTHEST / torch.special.ndtri((1 + below) / 2)).clamp(min=2)


def _groups(axes: int) -> list[tuple[int, ...]]:
    """Lists the axes over which elements are peers: those but the sample, those but the sample and one other.

    Of a table also the samples of a channel. Which axis holds channels need not be known.
    """
    every = range(axes)
    groups = [tuple(every[1:])]
    if axes in (1, 2):
        groups.append((0,))
    groups += [tuple(axis for axis in every[1:] if axis != kept) for kept in every[1:]]
    return list(dict.fromkeys(groups))


def scales(exact: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Returns the largest absolute value of elements like each one; infinite ones do not count.

    Of a table (samples, channels), that is the largest value of the channel. Samples that are more than a thousand
    times brighter or darker than the median one are first brought to its brightness. It is never above the largest
    value of the sample. Of outputs with more axes, it is the largest value along any of them in the same sample.
    """
    size = exact.abs().masked_fill(saturated(exact), 0.0)
    if not size.numel():
        return size
    if size.ndim > 2:
        scale = torch.full_like(size, math.inf)
        for pooled in _groups(size.ndim)[1:]:
            scale = torch.minimum(scale, size.amax(pooled, keepdim=True))
        return scale
    table = size.reshape(len(size), -1) if size.ndim else size.reshape(1, 1)
    typical = table.median(0).values
    brightness = (table / typical).masked_fill(typical == 0, 0.0).amax(1, keepdim=True)
    middle = brightness.median()
    far = (brightness > _SAME_BRIGHTNESS * middle) | (brightness * _SAME_BRIGHTNESS < middle)
    brightness = torch.where(far & (brightness > 0), brightness / middle, 1.0)
    scale = brightness * (table / brightness).amax(0)
    return torch.minimum(scale, table.amax(1, keepdim=True)).reshape(size.shape)


def differences(
    x: Tensor, exact: Float[Tensor, "*shape"], allowed: Float[Tensor, "*shape"]
) -> list[Difference]:
    """Returns the two elements of an output that are judged: nearest to what rounding explains, and farthest off.

    Args:
        x: The output.
        exact: What it is compared with, in float64.
        allowed: What rounding explains, as `Roundings.allowed` gives it.

    Returns:
        The element of the largest error over rounding, and that of the largest error over scale; zeros for an
        empty output.
    """
    if not exact.numel():
        return [Difference()] * 2
    errors = errors_of(x, exact)
    scale = scales(exact)
    shows = (errors == 0) | (allowed <= sample_scales(exact))
    judged = []
    for unit in (allowed, scale):
        ratio = torch.where(shows, errors / unit, math.inf).nan_to_num(math.inf)
        ratio = torch.where(errors == 0, -1 / (1 + unit), ratio)
        place = ratio.flatten().argmax()
        error, rounding, largest, shown = [
            values.flatten()[place].item() for values in (errors, allowed, scale, shows)
        ]
        judged.append(Difference(error, rounding, largest, bool(shown)))
    return judged


def sample_scales(exact: Float[Tensor, "*shape"]) -> Float[Tensor, "..."]:
    """Returns the largest absolute value of each sample, without infinite ones, to be broadcast."""
    size = exact.abs().masked_fill(saturated(exact), 0.0)
    return _most(size, tuple(range(1, size.ndim)))


def _most(sizes: Tensor, pooled: tuple[int, ...]) -> Tensor:
    """Returns the largest of sizes over some axes, to be broadcast: 0 of none, for instance of no boxes."""
    if not pooled:
        return sizes
    if not sizes.numel():
        return sizes.sum(pooled, keepdim=True)
    return sizes.amax(pooled, keepdim=True)


# --- Outputs of two networks ------------------------------------------------------------------------------------------


def compare_outputs(
    results: Sequence[Tensor],
    high: Sequence[Tensor],
    convolved: Sequence[Tensor] | None,
    of_source: Sequence[Sequence[Tensor]],
    of_convolutions: Sequence[Sequence[Tensor]],
    steps: Sequence[float],
    notes: list[str],
) -> tuple[list[Difference], list[Tensor]]:
    """Compares every output with the reference, and that with the network of convolutions in float64.

    Args:
        results: The outputs to judge.
        high: The reference, the source in float64.
        convolved: The network of convolutions in float64, or None.
        of_source: Runs of the source. They show how far `convolved` may be from the reference.
        of_convolutions: Runs of the network of convolutions.
        steps: The eps of each output.
        notes: What is not covered; what is found is added.

    Returns:
        Two differences for each output, and the error of each element that rounding explains.
    """
    if not high:
        return [Difference()], []
    if shapes_of(results) != shapes_of(high):
        notes.append(
            f"the network as a whole: the shapes of its outputs are {shapes_of(results)}, of the source"
            f" {shapes_of(high)}"
        )
        return [Difference(math.inf, 0.0, math.nan)], []
    judged = []
    allowances = []
    for i, (result, exact, step) in enumerate(zip(results, high, steps, strict=True)):
        roundings = Roundings(exact)
        for run in of_source:
            roundings.add(run[i])
        agrees = True
        exact_convolved = exact
        if convolved is not None:
            exact_convolved = convolved[i]
            apart, _ = differences(exact_convolved, exact, roundings.allowed(step))
            agrees = apart.share <= 1
        for run in of_convolutions:
            roundings.add(run[i], exact_convolved)
        allowed = roundings.allowed(step)
        both = differences(result, exact, allowed)
        judged += [one._replace(same=one.same and agrees) for one in both]
        if not all(torch.isfinite(x).all() for x in (allowed, exact[~saturated(exact)])):
            notes.append("the network as a whole: its outputs are not finite")
        allowances.append(allowed)
    return judged, allowances


def vary(high: Sequence[Tensor], runs: Sequence[Sequence[Tensor]], steps: Sequence[float]) -> bool:
    """Tells whether runs differ by so much more than rounding that outputs show little."""
    for i, (exact, step) in enumerate(zip(high, steps, strict=True)):
        roundings = Roundings(exact.double())
        for run in runs:
            roundings.add(run[i])
        if (roundings.allowed(step) > step**_MOST * sample_scales(exact)).any():
            return True
    return False


def shapes_of(outputs: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Returns the shape of each output."""
    return [tuple(x.shape) for x in outputs]


class Predictions(NamedTuple):
    """The largest score of each row, where the first output is one row of scores per image."""

    top1_total: int
    top1_changed: int  # How many differ from those of the source
    top1_ties: int  # How many of these differ where rounding can swap the two scores


def count_predictions(
    plain: Sequence[Tensor],
    results: Sequence[Tensor],
    allowances: Sequence[Tensor],
) -> Predictions | None:
    """Counts predictions, those that changed and ties, if the first output is scores.

    A tie is a prediction that changed between two scores of the source that rounding can swap.
    """
    if not plain or not allowances:
        return None
    scores = plain[0]
    new_scores = results[0]
    if scores.ndim != 2 or scores.shape[1] < 2 or new_scores.shape != scores.shape:
        return None
    before = scores.argmax(1, keepdim=True)
    after = new_scores.argmax(1, keepdim=True)
    changed = before != after
    gap = (scores.gather(1, before) - scores.gather(1, after)).double()
    swapped = allowances[0].gather(1, before) + allowances[0].gather(1, after)
    ties = changed & (gap <= swapped)
    return Predictions(
        top1_total=len(before),
        top1_changed=int(changed.sum()),
        top1_ties=int(ties.sum()),
    )


# --- Other parts of outputs -------------------------------------------------------------------------------------------


def compare_parts(
    plain: Sequence[Parts],
    results: Sequence[Parts],
    again: Sequence[Sequence[Parts]],
    notes: list[str],
) -> tuple[tuple[str, ...], bool]:
    """Compares what two networks return on each batch.

    Returns what differs, and whether there are parts that cannot be seen into. `notes` gets both in words, and what
    rounding moves.

    `again` are runs of the first network that differ from `plain` by rounding. Twice as many elements as differ there
    may differ in the second network: a label where two scores are nearly alike depends on the last digit.
    """
    differing: dict[str, None] = {}
    moving: dict[str, None] = {}
    hidden: dict[str, dict[str, None]] = {}
    for batch, (one, two) in enumerate(zip(plain, results, strict=True)):
        for place in {**one, **two}:
            name = f"the output{place}"
            part = one.get(place)
            by_rounding = max(_elements_apart(part, run[batch].get(place)) for run in again)
            if isinstance(part, type):
                hidden.setdefault(part.__name__, {})[name] = None
            elif by_rounding:
                moving[name] = None
            if _elements_apart(part, two.get(place)) > 2 * by_rounding:
                differing[name] = None
    if differing:
        notes.append(f"{some(list(differing))}: not that of the source")
    if moving:
        why = "rounding, random numbers or kept state change it, too"
        notes.append(f"{some(list(moving))}: {why}")
    for kind, names in hidden.items():
        why = f"a part of type {kind} is not compared, so nothing is called exact"
        notes.append(f"{some(list(names))}: {why}")
    return tuple(differing), bool(hidden)


def _elements_apart(one: Any, two: Any) -> int:
    """Counts the elements in which a part differs; None is no part."""
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        return int(one is not two and (type(one) is not type(two) or one != two))
    if one.shape != two.shape or one.dtype != two.dtype:
        return max(1, one.numel(), two.numel())
    return int((one != two).sum())
