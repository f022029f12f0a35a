"""Two networks that should compute the same, run on images: how far they are apart, and the verdict on that."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from convattn.budget import LEAST_ROUNDINGS
from convattn.convert.calls import Call, attended
from convattn.convert.certificate import Verdict
from convattn.convert.convolutions import NetworkConvolution
from convattn.convert.judging import (
    Difference,
    Roundings,
    differences,
    sample_scales,
    saturated,
)
from convattn.convert.surgery import (
    Arguments,
    copy_module,
    graft,
    is_floating,
    layer_outputs,
    output_of,
    parts,
    tensors,
)
from convattn.convert.taps import AnyConvolution, summed_otherwise
from convattn.errors import ArgumentError, ConversionError, must_fit
from convattn.wording import some

_BATCH = 64
"""Images that run at once."""

_ROUNDINGS = LEAST_ROUNDINGS - 1
"""Runs on images with other last digits. They show rounding where two orders of summation agree by luck."""

_MOST = 1 / 4
"""Power of eps. If rounding may change an output by more than this share of its sample's values, little is shown."""

_WHOLE = "the network as a whole"
_VARIES = (
    "rounding, random numbers or state kept between runs change its outputs too much to compare"
)
_NOTHING = "it returns no floating-point number"

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types of values that are compared as they print."""

_FARTHER = 2
"""How many times as far as an output a layer may be. A merged normalisation puts a large bias first: with AVX2 the sum
is then 2.5 times as far (median of 30 layers; 0.99 times with AVX-512)."""

_FLOATING, _MISSING = ..., NotImplemented
"""Stand for floating-point numbers among the parts of an output, which are compared as tensors, and for no part."""

_Parts = dict[str, Any]
"""All parts of an output by place, like "['boxes'][0]"."""


class Predictions(NamedTuple):
    """The largest score of each row, where the first output is one row of scores per image."""

    top1_total: int
    top1_changed: int  # How many differ from those of the source
    top1_ties: int  # How many of these differ where rounding can swap the two scores


@dataclass(frozen=True)
class NetworkComparison:
    """How far a network is from its source on some images."""

    images: str  # What the networks were run on, in words
    shapes: tuple[tuple[int, ...], ...]  # Shapes of the tensors that they were called with
    reference: str  # Dtype in which the source computes the reference
    outputs: tuple[
        Difference, ...
    ]  # Two differences per output: against rounding, and against scale
    differing: tuple[str, ...]  # Parts of the output beside floating-point numbers that differ
    predictions: Predictions | None  # None where the first output is not rows of scores
    not_covered: tuple[str, ...]  # What the comparison could not show
    # The first layer that differs, or no difference, where outputs show little; else None
    layers: Difference | None = None

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
            tolerance: Largest difference that is called close, as a share of its scale; None calls none so.
        """
        alike = not changed and not self.differing
        same = exact and self.nearest_to_rounding.share <= 1 and not self.differing
        if self.layers is not None:
            if self.layers.share > 1:
                return "failed" if promised else "different"
            return "exact" if same else "different"
        if not all(math.isfinite(output.error) for output in self.outputs):
            return "failed"
        if same or promised:
            return "exact" if same else "failed"
        farthest = self.farthest
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
    convolutions: Sequence[NetworkConvolution],
    *,
    to_conv: bool,
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
    plain, *moved = _runs_of_source(source, arguments, batches)
    high = _in_float64(source, batches, notes)
    convolved = None
    if high is not None:
        network = other
        if not to_conv:
            network = _with_convolutions(source, convolutions, _compute_in_float64)
        convolved = _in_float64(network, batches, notes)
    try:
        with watch or nullcontext():
            result = _run(other, batches)
    except Exception as error:  # a foreign network may look at its layers in any way
        network = "other" if rounded else "the converted network"
        raise ConversionError(f"{network} does not run: {type(error).__name__}: {error}") from error
    of_source = [run.numbers for run in (plain, *moved)]
    of_source += [_run(network, batches).numbers for network in rounded]
    reordered = [result.numbers] if to_conv else []
    dtype = _narrowest(plain.numbers)
    if not to_conv or (convolved is not None and dtype == torch.float64):
        network = other if to_conv else source
        summed = _with_convolutions(network, convolutions, summed_otherwise)
        reordered.append(_run(summed, batches).numbers)
    own_shapes = _shapes(plain.numbers)
    steps = _steps(source, plain.numbers)
    honest = [*of_source, *reordered, high or plain.numbers, convolved or plain.numbers]
    returns_nothing = not any(x.numel() for x in plain.numbers)
    by_layers = returns_nothing or any(_shapes(run) != own_shapes for run in honest)
    by_layers = by_layers or _vary(high or of_source[0], of_source, steps)
    reference = torch.float64
    if high is None or convolved is None or by_layers:
        reference = dtype
        high = [x.double() for x in plain.numbers]
        convolved = None
        reordered = [] if to_conv else reordered
    if by_layers:
        why = _NOTHING if returns_nothing else _VARIES
        notes.append(f"{_WHOLE}: {why}, so its layers were compared, in {_name(dtype)}")
        of_source = [run for run in of_source if _shapes(run) == own_shapes]
        reordered = [run for run in reordered if _shapes(run) == own_shapes]
    judged, allowances = compare_outputs(
        result.numbers,
        high,
        convolved,
        source_runs=[_Rounded(run, high) for run in of_source],
        other_runs=[_Rounded(run, convolved or high) for run in reordered],
        steps=steps,
        notes=notes,
    )
    if not (to_conv or by_layers) and not all(output.same for output in judged):
        notes.append(
            f"{_WHOLE}: with its convolutions as they were read, it computes something else"
        )
    differing, uncompared = _compare_parts(plain.others, result.others, [r.others for r in moved])
    if differing:
        notes.append(f"{some(differing)}: not that of the source")
    return NetworkComparison(
        images=arguments.words,
        shapes=arguments.shapes(),
        reference=_name(reference),
        outputs=tuple(judged),
        differing=tuple(differing),
        predictions=_predictions(plain.numbers, result.numbers, allowances),
        not_covered=(*notes, *uncompared),
        layers=_judge_layers(source, rounded, other, arguments) if by_layers else None,
    )


# --- Runs -------------------------------------------------------------------------------------------------------------


def _runs_of_source(
    source: nn.Module, arguments: Arguments, batches: Sequence[Arguments]
) -> list[_Run]:
    """Runs a network on its images, and on images with other last digits."""
    runs = []
    for seed in range(-1, _ROUNDINGS):
        images = batches
        if seed >= 0:
            images = [batch.rounded_differently(seed) for batch in batches]
        try:
            runs.append(_run(copy_module(source).eval(), images))
        except Exception as error:  # a foreign network may fail in any way
            raise ArgumentError(must_fit(arguments.words, error)) from error
    return runs


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
    if len({len(outputs) for outputs in numbers}) > 1:  # one output for each image
        return _Run([output for outputs in numbers for output in outputs], others)
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
    convolutions: Sequence[NetworkConvolution],
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
        own: list[str],
        present: dict[str, Any],
        *positional: Tensor,
        **named: Tensor,
    ) -> Tensor:
        conv._parameters = {**conv._parameters, **{name: present[name] for name in own}}
        return compute(conv, next(iter((*positional, *named.values()))))

    calling: dict[nn.Module, list[tuple[Call, nn.Module]]] = {}
    for one in convolutions:
        place = places[one.name]
        own = [] if one.call else _shared_parameters(originals[one.name], one.conv)
        present = place._parameters  # not the place: a cycle would keep the copy in memory
        run = partial(forward, copy.copy(one.conv), own, present)
        if one.call is None:
            place.forward = run
        else:
            layer = nn.Identity()
            layer.forward = run
            calling.setdefault(place, []).append((one.call, layer))
    return graft(copied, attended(calling))


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
) -> tuple[list[Difference], list[Tensor]]:
    """Compares every output with the reference, and that with the network of convolutions in float64, `convolved`.

    `source_runs` show how far `convolved` may be from the reference. `steps` holds the eps of each output. Returns two
    differences for each output, and the error of each element that rounding explains.
    """
    if not high:
        return [Difference(0.0, 0.0, 0.0)], []
    if _shapes(results) != _shapes(high):
        of_source = _shapes(high)
        notes.append(
            f"{_WHOLE}: the shapes of its outputs are {_shapes(results)}, of the source {of_source}"
        )
        return [Difference(math.inf, 0.0, math.nan)], []
    judged = []
    allowances = []
    for i, (result, exact, step) in enumerate(zip(results, high, steps, strict=True)):
        roundings = Roundings(exact)
        for run in source_runs:
            roundings.add(run.outputs[i], run.exact[i])
        agrees = True
        if convolved is not None:
            apart, _ = differences(convolved[i], exact, roundings.allowed(step))
            agrees = apart.share <= 1
        for run in other_runs:
            roundings.add(run.outputs[i], run.exact[i])
        allowed = roundings.allowed(step)
        both = differences(result, exact, allowed)
        judged += [one._replace(same=one.same and agrees) for one in both]
        if not all(torch.isfinite(x).all() for x in (allowed, exact[~saturated(exact)])):
            notes.append(f"{_WHOLE}: its outputs are not finite")
        allowances.append(allowed)
    return judged, allowances


def _vary(high: Sequence[Tensor], runs: Sequence[Sequence[Tensor]], steps: Sequence[float]) -> bool:
    """Tells whether runs differ by so much more than rounding that outputs show little."""
    for i, (exact, step) in enumerate(zip(high, steps, strict=True)):
        roundings = Roundings(exact.double())
        for run in runs:
            roundings.add(run[i])
        if (roundings.allowed(step) > step**_MOST * sample_scales(exact)).any():
            return True
    return False


def _narrowest(outputs: Sequence[Tensor]) -> torch.dtype:
    """Returns the narrowest dtype of some outputs."""
    dtypes = [x.dtype for x in outputs]
    return min(dtypes, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shapes(outputs: Sequence[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(x.shape) for x in outputs]


def _steps(source: nn.Module, outputs: Sequence[Tensor]) -> list[float]:
    """Returns the eps of each output; one in float64, like any Python number, was computed from the parameters."""
    held = [torch.finfo(p.dtype).eps for p in source.parameters() if p.is_floating_point()]
    steps = []
    for x in outputs:
        eps = torch.finfo(x.dtype).eps
        steps.append(max([eps, *held]) if x.dtype == torch.float64 else eps)
    return steps


def _predictions(
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


# --- Layers -----------------------------------------------------------------------------------------------------------


def _judge_layers(
    source: nn.Module, rounded: Sequence[nn.Module], other: nn.Module, arguments: Arguments
) -> Difference:
    """Judges two networks by their layers: returns the first that is outside its tolerance, or no difference."""
    images = arguments.batches(4)[0]
    _, first = compare_layers(source, rounded, images, lambda _: layer_outputs(other, images)[0])
    return Difference(0.0, 0.0, 0.0) if first is None else first.apart


class LayerApart(NamedTuple):
    """A layer whose output is farther off than rounding explains."""

    name: str
    apart: Difference


def compare_layers(
    source: nn.Module,
    rounded: Sequence[nn.Module],
    images: Arguments,
    values_of: Callable[[Sequence[str]], Mapping[str, Tensor]],
) -> tuple[int, LayerApart | None]:
    """Returns how many layers could be matched by their names, and the first that is outside its tolerance.

    A layer is passed over if all that take its output, or else the module that holds it, are within their tolerances.

    Args:
        source: The network that is right.
        rounded: Copies of it that compute with other roundings.
        images: What they run on.
        values_of: Returns outputs of the other network's layers, by names of the source's.
    """
    exact = copy.deepcopy(source).double()
    high, takers = layer_outputs(exact, images, torch.float64)
    values = values_of(list(high))
    roundings = {}
    for name, x in high.items():
        value = values.get(name)
        if value is not None and value.shape == x.shape and not x.isnan().any():
            roundings[name] = Roundings(x)
    steps = {}
    moved = [images.rounded_differently(seed) for seed in range(_ROUNDINGS)]
    runs = [(source, given) for given in (images, *moved)]
    runs += [(network, images) for network in rounded]
    for network, given in runs:
        for name, low in layer_outputs(network, given)[0].items():
            if name in roundings and low.shape == high[name].shape:
                roundings[name].add(low)
                steps[name] = torch.finfo(low.dtype).eps
    apart = {}
    for name, step in steps.items():
        allowed = _FARTHER * roundings[name].allowed(step)
        one = differences(values[name], high[name], allowed)[0]
        if one.same:
            apart[name] = one
    for name, one in apart.items():
        parent = name.rpartition(".")[0]
        after = [apart[taker].share <= 1 for taker in takers.get(name, [parent]) if taker in apart]
        passed_over = bool(after) and all(after)
        if one.share > 1 and not passed_over:
            return len(apart), LayerApart(name, one)
    return len(apart), None


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
