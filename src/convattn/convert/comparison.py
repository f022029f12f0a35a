"""Two networks that should compute the same, run on images: how far they are apart, and the verdict on that."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.func import functional_call

from convattn.budget import LEAST_ROUNDINGS
from convattn.convert.bounds import largest
from convattn.convert.certificate import Verdict
from convattn.convert.surgery import (
    Arguments,
    copy_module,
    is_floating,
    output_of,
    parts,
    tensors,
)
from convattn.convert.taps import AnyConvolution, read_taps, summed_otherwise
from convattn.convert.to_attention import pad_same
from convattn.errors import ArgumentError, ConversionError, must_be, must_fit
from convattn.wording import some

_BATCH = 64
"""Images that run at once."""

_ROUNDINGS = LEAST_ROUNDINGS - 1
"""Runs on images with other last digits. They show rounding where two orders of summation agree by luck."""

_MOST = 1 / 4
"""Power of eps. If rounding may change an output by more than this share of its largest value, little is shown."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types of values that are compared as they print."""

_FLOATING, _MISSING = ..., NotImplemented
"""Stand for floating-point numbers among the parts of an output, which are compared as tensors, and for no part."""

Convolutions = Mapping[str, tuple[AnyConvolution, bool]]
"""Convolutions as they were read, by name, each with whether the image is first padded by its size."""

_Parts = dict[str, Any]
"""All parts of an output by place, like "['boxes'][0]"."""


class Difference(NamedTuple):
    """How far one output of a network is from the reference."""

    error: float  # Largest difference
    rounding: float  # Largest difference that rounding explains
    largest: float  # Largest absolute value of the reference
    same: bool = True  # Whether both networks agree in float64, where that was compared

    @property
    def relative(self) -> float:
        """Error over largest value; not a number counts as infinite."""
        if self.error == 0:
            return 0.0
        if self.largest == 0 or math.isnan(self.error / self.largest):
            return math.inf
        return self.error / self.largest

    @property
    def share(self) -> float:
        """Error over rounding; infinite where the networks differ in float64 or rounding exceeds the values."""
        finite = math.isfinite(self.error) and math.isfinite(self.rounding)
        if not self.same or not finite or self.rounding > self.largest:
            return math.inf
        if self.rounding == 0:
            return math.inf if self.error else 0.0
        return self.error / self.rounding


class Predictions(NamedTuple):
    """The largest score of each row, where the first output is one row of scores per image."""

    top1_total: int
    top1_changed: int  # How many differ from those of the source
    top1_ties: int  # How many of these differ where rounding can swap the two scores
    accuracy_before: float | None  # Share of the labels that the source predicts; None without
    accuracy_after: float | None  # The same for the other network


@dataclass(frozen=True)
class NetworkComparison:
    """How far a network is from its source on some images."""

    images: str  # What the networks were run on, in words
    shapes: tuple[tuple[int, ...], ...]  # Shapes of the tensors that they were called with
    reference: str  # Dtype in which the source computes the reference
    outputs: tuple[Difference, ...]  # One difference per output, at least one
    differing: tuple[str, ...]  # Parts of the output beside floating-point numbers that differ
    predictions: Predictions | None  # None where the first output is not rows of scores
    not_covered: tuple[str, ...]  # What the comparison could not show

    @property
    def nearest_to_rounding(self) -> Difference:
        """The output nearest to its budget of rounding, or farthest beyond."""
        return max(self.outputs, key=lambda output: output.share)

    @property
    def farthest(self) -> Difference:
        """The output of the largest error, relative to its values."""
        return max(self.outputs, key=lambda output: output.relative)

    def judge(
        self, *, exact: bool, promised: bool, changed: int | None, tolerance: float | None
    ) -> Verdict:
        """Returns the verdict on two networks.

        Args:
            exact: Whether everything but the outputs lets them be the same.
            promised: Whether they were promised to be the same.
            changed: How many decisions count as changed.
            tolerance: Largest difference that is called close, as a share of the largest value; None calls none so.
        """
        farthest = self.farthest
        if not math.isfinite(farthest.error):
            return "failed"
        if exact and self.nearest_to_rounding.share <= 1 and not self.differing:
            return "exact"
        if promised:
            return "failed"
        alike = not changed and not self.differing
        if tolerance is not None and farthest.largest > 0 and farthest.relative <= tolerance:
            return "close" if alike else "different"
        return "different"


class _Run(NamedTuple):
    """What a network returned."""

    numbers: list[Tensor]  # Floating-point outputs, over all batches
    others: list[_Parts]  # Other parts, of each batch


class _Rounded(NamedTuple):
    """Outputs in a network's own dtype, and those of the same computation in float64."""

    outputs: list[Tensor]
    exact: list[Tensor]


def compare_networks(
    source: nn.Module,
    other: nn.Module,
    arguments: Arguments,
    convolutions: Convolutions,
    *,
    to_conv: bool,
    labels: Int[Tensor, " images"] | None = None,
    watch: AbstractContextManager[object] | None = None,
    rounded: Sequence[nn.Module] = (),
) -> NetworkComparison:
    """Runs both networks, and measures how far the other one is from the source in float64.

    Runs that differ by rounding alone show what rounding explains: the source on images with other last digits, and
    the network of convolutions with these summed tap by tap, against the same convolutions in float64. Where the
    other network is the one of convolutions (`to_conv`), it must also agree in float64 with the source as far as
    rounding moves the source in its own dtype.

    `other` is a copy of the converted network in evaluation mode; it runs, and may change itself. `watch` is entered
    while it runs in its own dtype. `rounded` holds copies of the source whose weights have other last digits. Raises
    ArgumentError if the source does not take the images, and ConversionError if the other network does not run.
    """
    batches = arguments.batches(_BATCH)
    notes = list[str]()
    try:
        plain = _run(copy_module(source).eval(), batches)
    except Exception as error:  # a foreign network may fail in any way
        raise ArgumentError(must_fit(arguments.words, error)) from error
    high = _in_float64(source, batches, notes)
    convolved = None
    if to_conv and high is not None:
        convolved = _in_float64(other, batches, notes)
    try:
        with watch or nullcontext():
            result = _run(other, batches)
    except Exception as error:  # a foreign network may look at its layers in any way
        network = "other" if rounded else "the converted network"
        raise ConversionError(f"{network} does not run: {type(error).__name__}: {error}") from error
    if not to_conv and high is not None:
        # without a name for the copy, which would keep it in memory
        convolved = _run(
            _with_convolutions(source, convolutions, _compute_in_float64).double(),
            batches,
            torch.float64,
        ).numbers
    reordered = [result.numbers] if to_conv else []
    dtypes = [x.dtype for x in plain.numbers]
    narrowest = min(dtypes, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)
    if not to_conv or (convolved is not None and narrowest == torch.float64):
        network = other if to_conv else source
        summed = _with_convolutions(network, convolutions, summed_otherwise)
        reordered.append(_run(summed, batches).numbers)
    moved = []
    for seed in range(_ROUNDINGS):
        images = [batch.rounded_differently(seed) for batch in batches]
        moved.append(_run(copy_module(source).eval(), images))
    of_source = [run.numbers for run in (plain, *moved)]
    of_source += [_run(network, batches).numbers for network in rounded]
    if high is None or convolved is None:
        reference = str(narrowest).removeprefix("torch.")
        high = [x.double() for x in plain.numbers]
        exact = high
        convolved = None
        if to_conv:
            reordered = []
    else:
        reference = "float64"
        exact = convolved
    outputs = compare_outputs(
        result.numbers,
        high,
        convolved,
        source_runs=[_Rounded(run, high) for run in of_source],
        other_runs=[_Rounded(run, exact) for run in reordered],
        steps=_steps(source, plain.numbers),
        notes=notes,
    )
    if not to_conv and not all(output.same for output in outputs):
        notes.append(
            "the network as a whole: with its convolutions as they were read, it computes something else"
        )
    differing, uncompared = _compare_parts(plain.others, result.others, [r.others for r in moved])
    if differing:
        notes.append(f"{some(differing)}: not that of the source")
    return NetworkComparison(
        images=arguments.words,
        shapes=arguments.shapes(),
        reference=reference,
        outputs=tuple(outputs),
        differing=tuple(differing),
        predictions=_predictions(plain.numbers, result.numbers, labels, 2 * outputs[0].rounding),
        not_covered=(*notes, *uncompared),
    )


# --- Runs -------------------------------------------------------------------------------------------------------------


def _run(
    network: nn.Module, batches: Sequence[Arguments], dtype: torch.dtype | None = None
) -> _Run:
    """Runs a network on all batches, in its own dtype or in another."""
    numbers = []
    others = []
    for batch in batches:
        output = output_of(network, batch, dtype)
        numbers.append(list(tensors(output, numbers=True)))
        placed = dict(parts(output))
        for place, part in placed.items():
            if is_floating(part):
                placed[place] = _FLOATING
        others.append(placed)
    if len(numbers) == 1:
        return _Run(numbers[0], others)
    joined = [torch.cat(torch.atleast_1d(*outputs)) for outputs in zip(*numbers, strict=True)]
    return _Run(joined, others)


def _in_float64(
    network: nn.Module, batches: Sequence[Arguments], notes: list[str]
) -> list[Tensor] | None:
    """Runs a copy in float64, or notes why it does not run so."""
    try:
        return _run(copy_module(network).eval().double(), batches, torch.float64).numbers
    except Exception as error:  # noqa: BLE001 - a network may insist on its dtype in any way
        notes.append(f"float64: the network does not run in it ({type(error).__name__}: {error})")
        return None


def _compute_in_float64(conv: AnyConvolution, x: Tensor) -> Tensor:
    parameters = {name: tensor.double() for name, tensor in conv.named_parameters()}
    return functional_call(conv, parameters, (x,))


def _with_convolutions(
    network: nn.Module,
    convolutions: Convolutions,
    compute: Callable[[AnyConvolution, Tensor], Tensor],
) -> nn.Module:
    """Copies a network with its convolutions as they were read, and lets `compute` run them.

    So rounding shows in every layer, and no misreading passes for it. Parameters of the network itself are read when
    they are used, because a network may change them in its forward.
    """
    copied = copy_module(network).eval()
    places = dict(copied.named_modules(remove_duplicate=False))
    originals = dict(network.named_modules(remove_duplicate=False))

    def forward(
        conv: AnyConvolution,
        same: bool,
        own: list[str],
        present: dict[str, Any],
        *positional: Tensor,
        **named: Tensor,
    ) -> Tensor:
        conv._parameters = {**conv._parameters, **{name: present[name] for name in own}}
        x = next(iter((*positional, *named.values())))
        return compute(conv, pad_same(x, read_taps(conv).geometry) if same else x)

    for name, (conv, same) in convolutions.items():
        own = _shared_parameters(originals[name], conv)
        present = places[name]._parameters  # not the place: a cycle would keep the copy in memory
        places[name].forward = partial(forward, copy.copy(conv), same, own, present)
    return copied


def _shared_parameters(module: nn.Module, conv: AnyConvolution) -> list[str]:
    """Names the parameters of a convolution that are the module's own."""
    shared = []
    for name, tensor in conv.named_parameters():
        original = module._parameters.get(name)
        if original is not None and original.data_ptr() == tensor.data_ptr():
            shared.append(name)
    return shared


# --- Floating-point outputs -------------------------------------------------------------------------------------------


def compare_outputs(
    results: Sequence[Tensor],
    high: Sequence[Tensor],
    convolved: Sequence[Tensor] | None,
    *,
    source_runs: Sequence[_Rounded],
    other_runs: Sequence[_Rounded],
    steps: Sequence[float],
    notes: list[str],
) -> list[Difference]:
    """Compares every output with the reference, and that with the network of convolutions in float64, `convolved`.

    `source_runs` show how far `convolved` may be from the reference. `steps` holds the eps of each output.
    """
    runs = [*source_runs, *other_runs]
    whole = "the network as a whole"
    if not high:
        notes.append(f"{whole}: it returns no floating-point tensor")
        return [Difference(0.0, 0.0, 0.0)]
    expected = [tuple(x.shape) for x in high]
    shapes = [tuple(x.shape) for x in results]
    honest = [run.outputs for run in runs]
    if convolved is not None:
        honest.append(list(convolved))
    if any([tuple(x.shape) for x in outputs] != expected for outputs in honest):
        notes.append(f"{whole}: the shapes of its outputs depend on their values")
        return [Difference(math.inf, 0.0, math.nan)]
    if shapes != expected:
        notes.append(f"{whole}: the shapes of its outputs are {shapes}, of the source {expected}")
        return [Difference(math.inf, 0.0, math.nan)]
    differences = []
    for i, (result, exact) in enumerate(zip(results, high, strict=True)):
        same = True
        if convolved is not None:
            same = largest(convolved[i] - exact) <= _budget(source_runs, i, steps[i])
        error = largest(result.double() - exact)
        differences.append(Difference(error, _budget(runs, i, steps[i]), largest(exact), same))
    if not all(math.isfinite(one.largest + one.rounding) for one in differences):
        notes.append(f"{whole}: its outputs are not finite")
    for step, one in zip(steps, differences, strict=True):
        if one.rounding > step**_MOST * one.largest:
            why = "rounding, random numbers or state kept between runs change its outputs too much to compare"
            notes.append(f"{whole}: {why}")
            break
    return differences


def _steps(source: nn.Module, outputs: Sequence[Tensor]) -> list[float]:
    """Returns the eps of each output; one in float64, like any Python number, was computed from the parameters."""
    held = [torch.finfo(p.dtype).eps for p in source.parameters() if p.is_floating_point()]
    steps = []
    for x in outputs:
        eps = torch.finfo(x.dtype).eps
        steps.append(max([eps, *held]) if x.dtype == torch.float64 else eps)
    return steps


def _budget(runs: Sequence[_Rounded], output: int, eps: float) -> float:
    """Returns the largest error of an output that rounding explains; each run is compared with its own reference."""
    errors = [largest(run.outputs[output].double() - run.exact[output]) for run in runs]
    values = [largest(run.exact[output]) for run in runs]
    return 2 * (max(errors) + eps * max(values))


def _predictions(
    plain: Sequence[Tensor], results: Sequence[Tensor], labels: Tensor | None, gap: float
) -> Predictions | None:
    """Counts predictions, those that changed and ties, and the shares of correct ones, if the first output is scores.

    A tie is a prediction that changed between scores of the source no farther apart than `gap`.
    """
    if not plain or not results:
        return None
    scores = plain[0]
    new_scores = results[0]
    if scores.ndim != 2 or scores.shape[1] < 2 or new_scores.shape != scores.shape:
        return None
    if labels is not None and len(labels) != len(scores):
        raise ArgumentError(must_be("labels", f"one per row of scores, {len(scores)}", len(labels)))
    before = scores.argmax(1)
    after = new_scores.argmax(1)
    changed = before != after
    highest = scores.gather(1, before[:, None])[:, 0]
    of_after = scores.gather(1, after[:, None])[:, 0]
    ties = changed & ((highest - of_after).double() <= gap)
    return Predictions(
        top1_total=len(before),
        top1_changed=int(changed.sum()),
        top1_ties=int(ties.sum()),
        accuracy_before=_share_of_labels(before, labels),
        accuracy_after=_share_of_labels(after, labels),
    )


def _share_of_labels(predicted: Tensor, labels: Tensor | None) -> float | None:
    if labels is None:
        return None
    return (predicted == labels.to(predicted.device)).double().mean().item()


# --- Other parts of outputs -------------------------------------------------------------------------------------------


def _compare_parts(
    plain: Sequence[_Parts], results: Sequence[_Parts], again: Sequence[Sequence[_Parts]]
) -> tuple[list[str], list[str]]:
    """Compares what two networks return on each batch; returns what differs, and in words what was not compared.

    `again` are runs of the first network that differ from `plain` by rounding. Twice as many elements as differ there
    may differ in the second network: a label where two scores are nearly alike depends on the last digit.
    """
    differing: dict[str, None] = {}
    uncompared: dict[str, dict[str, None]] = {}
    for batch, (one, two) in enumerate(zip(plain, results, strict=True)):
        for place in {**one, **two}:
            name = f"the output{place}"
            apart = _elements_apart(one, two, place)
            moved = [_elements_apart(one, run[batch], place) for run in again]
            by_rounding = max(count or 0 for count in moved)
            if apart is None or None in moved:
                reason = f"a part of type {type(one[place]).__name__} is not compared"
                uncompared.setdefault(reason, {})[name] = None
            elif by_rounding:
                reason = "rounding, random numbers or kept state change it, too"
                uncompared.setdefault(reason, {})[name] = None
            if (apart or 0) > 2 * by_rounding:
                differing[name] = None
    reasons = [f"{some(list(names))}: {reason}" for reason, names in uncompared.items()]
    return list(differing), reasons


def _elements_apart(one: _Parts, two: _Parts, place: str) -> int | None:
    """Counts the elements in which a part differs; None if it cannot be compared."""
    first = one.get(place, _MISSING)
    second = two.get(place, _MISSING)
    if first is second:
        return 0
    if type(first) is not type(second):
        return 1
    if isinstance(first, _PLAIN):
        return int(repr(first) != repr(second))  # repr: nan is nan, and -0.0 is not 0.0
    if not _is_comparable(first) or not _is_comparable(second):
        return None
    if first.shape != second.shape or first.dtype != second.dtype:
        return max(1, first.numel(), second.numel())
    return int((first != second).sum())


def _is_comparable(part: Any) -> bool:
    is_plain = isinstance(part, Tensor) and part.layout is torch.strided
    return is_plain and not part.is_quantized and not part.is_meta
