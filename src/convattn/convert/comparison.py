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

from convattn.convert.certificate import (
    LayerCertificate,
    LeftAlone,
    NetworkCertificate,
    Verdict,
    largest,
)
from convattn.convert.surgery import (
    Arguments,
    copy_module,
    full_name,
    is_floating,
    output_of,
    parts,
    tensors,
)
from convattn.convert.taps import AnyConvolution, read_taps, summed_otherwise
from convattn.convert.to_attention import pad_same
from convattn.errors import ArgumentError, ConversionError, must_be, must_fit
from convattn.functional.reference import LEAST_ROUNDINGS
from convattn.sealed import weights_digest
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

_Run = tuple[list[Tensor], list[_Parts]]
"""Numbers and other parts of the output of a run; the numbers over all batches, the parts by batch."""

_Rounded = tuple[list[Tensor], list[Tensor]]
"""Outputs in the networks' own dtype, and those of the same computation in float64."""


class Difference(NamedTuple):
    """How far one output of a network is from the reference."""

    error: float  # Largest difference
    rounding: float  # Largest difference that rounding explains
    largest: float  # Largest absolute value of the reference
    same: bool = True  # Whether both networks agree in float64, where that was compared

    @property
    def relative(self) -> float:
        """Error over largest value; not a number counts as infinite."""
        share = self.error / self.largest if self.largest else math.inf * self.error
        return 0.0 if self.error == 0 else math.inf if math.isnan(share) else share

    @property
    def share(self) -> float:
        """Error over rounding; infinite where the networks differ in float64 or rounding exceeds the values."""
        if (
            not self.same
            or self.rounding > self.largest
            or not math.isfinite(self.error + self.rounding)
        ):
            return math.inf
        return self.error / self.rounding if self.rounding else math.inf if self.error else 0.0


@dataclass(frozen=True)
class NetworkComparison:
    """How far a network is from its source on some images."""

    images: str  # What the networks were run on, in words
    shapes: tuple[tuple[int, ...], ...]  # Shapes of the tensors that they were called with
    reference: str  # Dtype in which the source computes the reference
    outputs: tuple[Difference, ...]  # One difference per output, at least one
    differing: tuple[str, ...]  # Parts of the output beside floating-point numbers that differ
    top1_total: (
        int | None
    )  # Number of predictions; None where the first output is not one row of scores per image
    top1_changed: int | None  # How many predictions differ from those of the source
    top1_ties: int | None  # How many of these differ where rounding can swap the two scores
    accuracy_before: (
        float | None
    )  # Share of the labels that the source predicts; None without labels
    accuracy_after: float | None  # The same for the converted network
    not_covered: tuple[str, ...]  # What the comparison could not show

    def worst(self, *, exact: bool) -> Difference:
        """Returns the output nearest to its budget or beyond; where layers are not exact, that of largest error."""
        return max(self.outputs, key=lambda one: one.share if exact else one.relative)


def certify_network(
    direction: str,
    networks: tuple[nn.Module, nn.Module],
    layers: Sequence[LayerCertificate],
    left_alone: Sequence[LeftAlone],
    comparison: NetworkComparison | None,
    *,
    tolerance: float | None,
    impl: str | None = None,
    not_covered: Sequence[str] = (),
) -> NetworkCertificate:
    """Makes the certificate of a conversion between two `networks`: the source, and the one made from it.

    `comparison` is None where the networks were not compared.
    """
    source, made = networks
    verdict, worst = _judge(layers, comparison, tolerance)
    dtypes = dict.fromkeys(
        str(parameter.dtype).removeprefix("torch.") for parameter in made.parameters()
    )
    repeated = (
        "images",
        "reference",
        "top1_total",
        "top1_changed",
        "accuracy_before",
        "accuracy_after",
    )
    return NetworkCertificate(
        direction=direction,
        source=full_name(type(source)),
        result=full_name(type(made)),
        dtype=", ".join(dtypes),
        impl=impl,
        layers=tuple(layers),
        left_alone=tuple(left_alone),
        exact=all(layer.exact for layer in layers),
        measured_error=worst.error if worst else None,
        rounding=worst.rounding if worst else None,
        largest=worst.largest if worst else None,
        tolerance=tolerance,
        verdict=verdict,
        not_covered=(*not_covered, *(comparison.not_covered if comparison else ())),
        weights=weights_digest(made),
        shapes=comparison.shapes if comparison else (),
        **{name: getattr(comparison, name, None) for name in repeated},
    )


def _judge(
    layers: Sequence[LayerCertificate],
    comparison: NetworkComparison | None,
    tolerance: float | None,
) -> tuple[Verdict, Difference | None]:
    """Returns the verdict on a network, and the output by which it is judged."""
    verdicts = {layer.verdict for layer in layers}
    if comparison is None:
        return "failed" if "failed" in verdicts else "exact" if verdicts == {
            "exact"
        } else "different", None
    by_rounding, by_size = comparison.worst(exact=True), comparison.worst(exact=False)
    exact = all(layer.exact for layer in layers)
    if "failed" in verdicts or not math.isfinite(by_size.error):
        return "failed", by_rounding if exact else by_size
    if verdicts == {"exact"} and by_rounding.share <= 1 and not comparison.differing:
        return "exact", by_rounding
    if exact:
        return "failed", by_rounding
    close = tolerance is not None and by_size.largest > 0 and by_size.relative <= tolerance
    return (
        "close"
        if close and not comparison.top1_changed and not comparison.differing
        else "different",
        by_size,
    )


def compare_networks(
    source: nn.Module,
    made: nn.Module,
    given: Arguments,
    convolutions: Convolutions,
    *,
    to_conv: bool,
    labels: Int[Tensor, " images"] | None = None,
    watch: AbstractContextManager[object] | None = None,
    rounded: Sequence[nn.Module] = (),
) -> NetworkComparison:
    """Runs both networks, and measures how far the converted one is from the source in float64.

    Runs that differ by rounding alone show what rounding explains: the source on images with other last digits, and
    the network of convolutions with these summed tap by tap, against the same convolutions in float64. Where the
    converted network is the one of convolutions (`to_conv`), it must also agree in float64 with the source as far as
    rounding moves the source in its own dtype.

    `made` is a copy of the converted network in evaluation mode; it runs, and may change itself. `watch` is entered
    while it runs in its own dtype. `rounded` holds copies of the source whose weights have other last digits. Raises
    ArgumentError if the source does not take the images, and ConversionError if the converted network does not run.
    """
    batches, notes = given.batches(_BATCH), list[str]()
    try:
        plain, plain_parts = _run(copy_module(source).eval(), batches)
    except Exception as error:  # a foreign network may fail in any way
        raise ArgumentError(must_fit(given.words, error)) from error
    high, convolved = _in_float64(source, batches, notes), None
    if to_conv and high is not None:
        convolved = _in_float64(made, batches, notes)
    try:
        with watch or nullcontext():
            results, made_parts = _run(made, batches)
    except Exception as error:  # a foreign network may look at its layers in any way
        network = "other" if rounded else "the converted network"
        raise ConversionError(f"{network} does not run: {type(error).__name__}: {error}") from error
    if not to_conv and high is not None:
        convolved, _ = _run(  # without a name for the copy, which would keep it in memory
            _with_convolutions(source, convolutions, _compute_in_float64).double(),
            batches,
            torch.float64,
        )
    own = min(
        (x.dtype for x in plain), key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32
    )
    reordered = [results] if to_conv else []
    if not to_conv or (convolved is not None and own == torch.float64):
        reordered.append(
            _run(
                _with_convolutions(made if to_conv else source, convolutions, summed_otherwise),
                batches,
            )[0]
        )
    moved = [
        _run(copy_module(source).eval(), [x.rounded_differently(seed) for x in batches])
        for seed in range(_ROUNDINGS)
    ]
    of_source = [run for run, _ in (*moved, *(_run(network, batches) for network in rounded))]
    if convolved is None or high is None:
        reference, high = str(own).removeprefix("torch."), [x.double() for x in plain]
        runs = (
            [(run, high) for run in of_source],
            [] if to_conv else [(run, high) for run in reordered],
        )
    else:
        reference = "float64"
        runs = [(run, high) for run in (plain, *of_source)], [(run, convolved) for run in reordered]
    outputs = _differences(results, high, convolved, runs, _steps(source, plain), notes)
    if not to_conv and not all(one.same for one in outputs):
        notes.append(
            "the network as a whole: with its convolutions as they were read, it computes something else"
        )
    differing, uncompared = _compare_parts(plain_parts, made_parts, [run for _, run in moved])
    if differing:
        notes.append(f"{some(differing)}: not that of the source")
    total, changed, ties, before, after = _predictions(
        plain, results, labels, 2 * outputs[0].rounding
    )
    return NetworkComparison(
        images=given.words,
        shapes=given.shapes(),
        reference=reference,
        outputs=tuple(outputs),
        differing=tuple(differing),
        top1_total=total,
        top1_changed=changed,
        top1_ties=ties,
        accuracy_before=before,
        accuracy_after=after,
        not_covered=(*notes, *uncompared),
    )


def _run(
    network: nn.Module, batches: Sequence[Arguments], dtype: torch.dtype | None = None
) -> _Run:
    """Runs a network on all batches, in its own dtype or in another."""
    numbers, others = [], list[_Parts]()
    for batch in batches:
        output = output_of(network, batch, dtype)
        numbers.append(list(tensors(output, numbers=True)))
        others.append(
            {place: _FLOATING if is_floating(part) else part for place, part in parts(output)}
        )
    if len(numbers) == 1:
        return numbers[0], others
    return [
        torch.cat(every) if every[0].ndim else torch.stack(every)
        for every in zip(*numbers, strict=True)
    ], others


def _in_float64(
    network: nn.Module, batches: Sequence[Arguments], notes: list[str]
) -> list[Tensor] | None:
    """Runs a copy in float64, or notes why it does not run so."""
    try:
        return _run(copy_module(network).eval().double(), batches, torch.float64)[0]
    except Exception as error:  # noqa: BLE001 - a network may insist on its dtype in any way
        notes.append(f"float64: the network does not run in it ({type(error).__name__}: {error})")
        return None


def _compute_in_float64(conv: AnyConvolution, x: Tensor) -> Tensor:
    return functional_call(
        conv, {kind: tensor.double() for kind, tensor in conv.named_parameters()}, (x,)
    )


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
    places, originals = (
        dict(net.named_modules(remove_duplicate=False)) for net in (copied, network)
    )

    def forward(
        conv: AnyConvolution,
        same: bool,
        own: list[str],
        present: dict[str, Any],
        *given: Tensor,
        **named: Tensor,
    ) -> Tensor:
        conv._parameters = {**conv._parameters, **{kind: present[kind] for kind in own}}
        x = next(iter((*given, *named.values())))
        return compute(conv, pad_same(x, read_taps(conv).geometry) if same else x)

    for name, (conv, same) in convolutions.items():
        held, place, read = originals[name]._parameters, places[name], dict(conv.named_parameters())
        own = [
            k
            for k, x in held.items()
            if k in read and x is not None and x.data_ptr() == read[k].data_ptr()
        ]
        present = place._parameters  # not the place itself: a cycle would keep the copy in memory
        place.forward = partial(forward, copy.copy(conv), same, own, present)
    return copied


def _differences(
    results: Sequence[Tensor],
    high: Sequence[Tensor],
    convolved: Sequence[Tensor] | None,
    runs: tuple[Sequence[_Rounded], Sequence[_Rounded]],
    steps: Sequence[float],
    notes: list[str],
) -> list[Difference]:
    """Compares every output with the reference, and that with the network of convolutions in float64, `convolved`.

    `runs` are those of the source, which show how far `convolved` may be from the reference, and others. `steps` holds
    the eps of each output.
    """
    of_source, every_run = runs[0], [*runs[0], *runs[1]]
    if not high:
        notes.append("the network as a whole: it returns no floating-point tensor")
        return [Difference(0.0, 0.0, 0.0)]
    every = (
        results,
        high,
        *([] if convolved is None else [convolved]),
        *(outputs for outputs, _ in every_run),
    )
    shapes = [[tuple(x.shape) for x in outputs] for outputs in every]
    if any(other != shapes[1] for other in shapes):
        depends = any(other != shapes[1] for other in shapes[2:])
        why = "depend on their values" if depends else f"are {shapes[0]}, of the source {shapes[1]}"
        notes.append(f"the network as a whole: the shapes of its outputs {why}")
        return [Difference(math.inf, 0.0, math.nan)]
    compared = []
    for i, (result, exact) in enumerate(zip(results, high, strict=True)):
        same = convolved is None or largest(convolved[i] - exact) <= _budget(of_source, i, steps[i])
        error, rounding = largest(result.double() - exact), _budget(every_run, i, steps[i])
        compared.append(Difference(error, rounding, largest(exact), same))
    if not all(math.isfinite(one.largest) and math.isfinite(one.rounding) for one in compared):
        notes.append("the network as a whole: its outputs are not finite")
    if any(
        one.rounding > eps**_MOST * one.largest for eps, one in zip(steps, compared, strict=True)
    ):
        why = "rounding, random numbers or state kept between runs change its outputs too much to compare"
        notes.append(f"the network as a whole: {why}")
    return compared


def _steps(source: nn.Module, plain: Sequence[Tensor]) -> list[float]:
    """Returns the eps of each output; one in float64, like any Python number, was computed from the parameters."""
    held = [torch.finfo(p.dtype).eps for p in source.parameters() if p.is_floating_point()]
    own = [torch.finfo(x.dtype).eps for x in plain]
    return [
        max([eps, *held]) if x.dtype == torch.float64 else eps
        for eps, x in zip(own, plain, strict=True)
    ]


def _budget(runs: Sequence[_Rounded], output: int, eps: float) -> float:
    """Returns the largest error of an output that rounding explains; each run is compared with its own reference."""
    errors = [largest(outputs[output].double() - reference[output]) for outputs, reference in runs]
    values = max(largest(reference[output]) for _, reference in runs)
    return 2 * (max(errors) + eps * values)


def _predictions(
    plain: Sequence[Tensor], results: Sequence[Tensor], labels: Tensor | None, gap: float
) -> tuple[int | None, int | None, int | None, float | None, float | None]:
    """Counts predictions, those that changed and ties, and the shares of correct ones, if the first output is scores.

    A tie is a prediction that changed between scores of the source no farther apart than `gap`.
    """
    if (
        not plain
        or not results
        or plain[0].ndim != 2
        or plain[0].shape[1] < 2
        or results[0].shape != plain[0].shape
    ):
        return None, None, None, None, None
    if labels is not None and len(labels) != len(plain[0]):
        raise ArgumentError(
            must_be("labels", f"one per row of scores, {len(plain[0])}", len(labels))
        )
    before, after = plain[0].argmax(1), results[0].argmax(1)
    best, now = (plain[0].gather(1, chosen[:, None])[:, 0] for chosen in (before, after))
    changed, near = before != after, (best - now).double() <= gap
    shares = [
        None
        if labels is None
        else (predicted == labels.to(predicted.device)).double().mean().item()
        for predicted in (before, after)
    ]
    return len(before), int(changed.sum()), int((near & changed).sum()), shares[0], shares[1]


def _compare_parts(
    plain: Sequence[_Parts], made: Sequence[_Parts], again: Sequence[Sequence[_Parts]]
) -> tuple[list[str], list[str]]:
    """Compares what two networks return on each batch; returns what differs, and in words what was not compared.

    `again` are runs of the first network that differ from `plain` by rounding. Twice as many elements as differ there
    may differ in the second network: a label where two scores are nearly alike depends on the last digit.
    """
    differing: list[str] = []
    uncompared: dict[str, list[str]] = {}
    for batch, (one, two) in enumerate(zip(plain, made, strict=True)):
        for place in {**one, **two}:
            name = f"the output{place}"
            apart, moved = (
                _elements_apart(one, two, place),
                [_elements_apart(one, run[batch], place) for run in again],
            )
            most = max(count or 0 for count in moved)
            if apart is None or None in moved:
                kind = type(one[place]).__name__
                uncompared.setdefault(f"a part of type {kind} is not compared", []).append(name)
            elif most:
                uncompared.setdefault(
                    "rounding, random numbers or kept state change it, too", []
                ).append(name)
            if (apart or 0) > 2 * most:
                differing.append(name)
    reasons = [
        f"{some(list(dict.fromkeys(names)))}: {reason}" for reason, names in uncompared.items()
    ]
    return list(dict.fromkeys(differing)), reasons


def _elements_apart(one: _Parts, two: _Parts, place: str) -> int | None:
    """Counts the elements in which a part differs; None if it cannot be compared."""
    first, second = one.get(place, _MISSING), two.get(place, _MISSING)
    if first is second:
        return 0
    if type(first) is not type(second):
        return 1
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        # repr: nan is nan, and -0.0 is not 0.0
        return int(repr(first) != repr(second)) if isinstance(first, _PLAIN) else None
    if any(x.layout is not torch.strided or x.is_quantized or x.is_meta for x in (first, second)):
        return None
    if first.shape != second.shape or first.dtype != second.dtype:
        return max(1, first.numel(), second.numel())
    return int((first != second).sum())
