"""Two networks that should compute the same, run on images: their outputs against the source in float64."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.func import functional_call

from convattn.convert.certificate import Difference, NetworkComparison, largest, summed_otherwise
from convattn.convert.classes import AnyConvolution
from convattn.convert.surgery import Arguments, Parts, compare_parts, copy_module, other_parts, output_of, tensors
from convattn.convert.taps import read_taps
from convattn.convert.to_attention import pad_same
from convattn.errors import ArgumentError, ConversionError, must_fit
from convattn.functional.rounding import LEAST_ROUNDINGS
from convattn.wording import some

_BATCH = 64
"""Images that run at once."""

_ROUNDINGS = LEAST_ROUNDINGS - 1
"""Runs on images with other last digits. They show rounding where two orders of summation agree by luck."""

_MOST = 1 / 4
"""Power of eps. If rounding may change an output by more than this share of its largest value, little is shown."""

_Road = tuple[list[Tensor], list[Tensor]]
"""The outputs of a run in the own dtype, and the same computation in float64."""


def compare_networks(
    source: nn.Module,
    made: nn.Module,
    given: Arguments,
    convolutions: Mapping[str, tuple[AnyConvolution, bool]],
    *,
    to_conv: bool,
    labels: Int[Tensor, " images"] | None = None,
    watch: AbstractContextManager[object] | None = None,
) -> NetworkComparison:
    """Runs both networks, and measures how far the converted one is from the source in float64.

    What rounding explains is seen on runs that differ by rounding alone: on convolutions summed tap by tap, against the
    same convolutions in float64, and on images with other last digits. Where the convolutions are in the converted
    network (`to_conv`), that one runs in float64 too, and must agree there with the source as far as rounding moves the
    source in its own dtype.

    `made` is a copy of the converted network in evaluation mode; it runs, and may change itself. `convolutions` holds,
    by name, each convolution and whether the image is first padded by its size. `watch` is entered while the converted
    network runs in its own dtype. A source that does not take the images raises ArgumentError, a converted network that
    does not run raises ConversionError.
    """
    batches, notes = given.batches(_BATCH), list[str]()
    plain_parts, made_parts = list[Parts](), list[Parts]()
    moved_parts = [list[Parts]() for _ in range(_ROUNDINGS)]
    try:
        plain = _outputs(copy_module(source).eval(), batches, parts=plain_parts)
    except Exception as error:  # a foreign network may fail in any way
        raise ArgumentError(must_fit(given.words, error)) from error
    own = min((x.dtype for x in plain), key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)
    high, high_made, other = _in_float64(source, batches, notes), None, None
    if to_conv and high is not None:
        high_made = _in_float64(made, batches, notes)
    try:
        with watch or nullcontext():
            results = _outputs(made, batches, parts=made_parts)
    except Exception as error:  # a foreign network may look at its layers in any way
        raise ConversionError(f"the converted network does not run: {type(error).__name__}: {error}") from error
    if not to_conv or (high_made is not None and own == torch.float64):
        other = _summed_otherwise(made if to_conv else source, convolutions, batches)
    of_source: list[_Road]
    roads: list[_Road] = []
    as_read = None
    if high is None or (to_conv and high_made is None):
        reference, high = str(own).removeprefix("torch."), [x.double() for x in plain]
        of_source = [(run, high) for run in _moved(source, batches, moved_parts)]
        roads = [] if other is None else [(other, high)]
    else:
        moved = _moved(source, batches, moved_parts)
        reference, of_source = "float64", [(run, high) for run in (plain, *moved)]
        if high_made is not None:
            roads = [(run, high_made) for run in (results, other) if run is not None]
        elif other is not None:
            as_read = _as_read(source, convolutions, batches)
            roads = [(other, as_read)]
    outputs = _compare(
        results, high, high_made if to_conv else as_read, (of_source, roads), _steps(source, plain), notes
    )
    if not to_conv and not all(one.same for one in outputs):
        notes.append("the network as a whole: with its convolutions as they were read, it computes something else")
    differing, uncompared = compare_parts(plain_parts, made_parts, moved_parts)
    if differing:
        notes.append(f"{some(differing)}: not that of the source")
    notes += uncompared
    total, changed, before, after = _predictions(plain, results, labels)
    return NetworkComparison(
        images=given.words,
        shapes=given.shapes(),
        reference=reference,
        outputs=tuple(outputs),
        differing=tuple(differing),
        top1_total=total,
        top1_changed=changed,
        accuracy_before=before,
        accuracy_after=after,
        not_covered=tuple(notes),
    )


def _outputs(
    network: nn.Module,
    batches: Sequence[Arguments],
    dtype: torch.dtype | None = None,
    *,
    parts: list[Parts] | None = None,
) -> list[Tensor]:
    """Runs a network on all batches and joins each of its outputs; adds all parts of them to `parts`, by batch."""
    found = []
    for batch in batches:
        output = output_of(network, batch, dtype)
        found.append(list(tensors(output, numbers=True)))
        if parts is not None:
            parts.append(dict(other_parts(output)))
    if len(found) == 1:
        return found[0]
    return [torch.cat(pieces) if pieces[0].ndim else torch.stack(pieces) for pieces in zip(*found, strict=True)]


def _in_float64(network: nn.Module, batches: Sequence[Arguments], notes: list[str]) -> list[Tensor] | None:
    """Runs a copy in float64, or notes why it does not run so."""
    try:
        return _outputs(copy_module(network).eval().double(), batches, torch.float64)
    except Exception as error:  # noqa: BLE001 - a network may insist on its dtype in any way
        notes.append(f"float64: the network does not run in it ({type(error).__name__}: {error})")
        return None


def _moved(source: nn.Module, batches: Sequence[Arguments], parts: Sequence[list[Parts]]) -> list[list[Tensor]]:
    """Runs copies on images with other last digits; adds all parts of their outputs to `parts`, by run."""
    return [
        _outputs(copy_module(source).eval(), [batch.rounded_differently(seed) for batch in batches], parts=parts[seed])
        for seed in range(_ROUNDINGS)
    ]


def _summed_otherwise(
    network: nn.Module, convolutions: Mapping[str, tuple[AnyConvolution, bool]], batches: Sequence[Arguments]
) -> list[Tensor]:
    """Runs a copy with its convolutions summed in another order, to see what rounding does in every layer."""

    def compute(conv: AnyConvolution, x: Tensor) -> Tensor:
        alone = x.ndim < conv.weight.ndim
        return summed_otherwise(conv, x[None])[0] if alone else summed_otherwise(conv, x)

    return _outputs(_with_convolutions(network, convolutions, compute), batches)


def _as_read(
    network: nn.Module, convolutions: Mapping[str, tuple[AnyConvolution, bool]], batches: Sequence[Arguments]
) -> list[Tensor]:
    """Runs a copy in float64 with its convolutions as they were read, so that no misreading passes for rounding."""

    def compute(conv: AnyConvolution, x: Tensor) -> Tensor:
        return functional_call(conv, {kind: tensor.double() for kind, tensor in conv.named_parameters()}, (x,))

    return _outputs(_with_convolutions(network, convolutions, compute).double(), batches, torch.float64)


def _with_convolutions(
    network: nn.Module,
    convolutions: Mapping[str, tuple[AnyConvolution, bool]],
    compute: Callable[[AnyConvolution, Tensor], Tensor],
) -> nn.Module:
    """Copies a network with its convolutions as they were read, and lets `compute` run them.

    Parameters of the network itself are read when they are used, because a network may change them in its forward.
    """
    copied = copy_module(network).eval()
    places, originals = (dict(net.named_modules(remove_duplicate=False)) for net in (copied, network))

    def forward(
        conv: AnyConvolution,
        same: bool,
        own: Sequence[str],
        present: Mapping[str, nn.Parameter | None],
        *given: Tensor,
        **named: Tensor,
    ) -> Tensor:
        conv._parameters = {**conv._parameters, **{kind: present[kind] for kind in own}}
        return compute(conv, _image(conv, same, given, named))

    for name, (conv, same) in convolutions.items():
        held, place, tensors = originals[name]._parameters, places[name], dict(conv.named_parameters())
        own = [kind for kind, x in held.items() if x is not None and kind in tensors and _same_memory(x, tensors[kind])]
        present = place._parameters  # not the place itself: a cycle would keep the copy in memory
        place.forward = partial(forward, copy.copy(conv), same, own, present)
    return copied


def _image(conv: AnyConvolution, same: bool, given: Sequence[Tensor], named: Mapping[str, Tensor]) -> Tensor:
    """Returns what a convolution was given under any name, padded by its size if the convolution does so."""
    x = next(iter((*given, *named.values())))
    return pad_same(x, read_taps(conv).geometry) if same else x


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr()


def _compare(
    results: Sequence[Tensor],
    high: Sequence[Tensor],
    again: Sequence[Tensor] | None,
    roads: tuple[Sequence[_Road], Sequence[_Road]],
    steps: Sequence[float],
    notes: list[str],
) -> list[Difference]:
    """Compares every output with the reference, and that with the same computation `again` in float64.

    `roads` are the runs of the source, which show how far `again` may be from it, and further runs. `steps` holds the
    eps of each output.
    """
    of_source, every_road = roads[0], [*roads[0], *roads[1]]
    if not high:
        notes.append("the network as a whole: it returns no floating-point tensor")
        return [Difference(0.0, 0.0, 0.0)]
    every = (results, high, *([] if again is None else [again]), *(outputs for outputs, _ in every_road))
    shapes = [[tuple(x.shape) for x in outputs] for outputs in every]
    if any(other != shapes[0] for other in shapes[1:]):
        notes.append("the network as a whole: the shapes of its outputs depend on their values")
        return [Difference(math.inf, 0.0, math.nan)]
    compared = []
    for i, (result, exact) in enumerate(zip(results, high, strict=True)):
        same = again is None or largest(again[i] - exact) <= _budget(of_source, i, steps[i])
        compared.append(
            Difference(largest(result.double() - exact), _budget(every_road, i, steps[i]), largest(exact), same)
        )
    if not all(math.isfinite(one.largest) and math.isfinite(one.rounding) for one in compared):
        notes.append("the network as a whole: its outputs are not finite")
    limits = [eps**_MOST * one.largest for eps, one in zip(steps, compared, strict=True)]
    if any(one.rounding > limit for one, limit in zip(compared, limits, strict=True)):
        notes.append(
            "the network as a whole: rounding, or state kept between runs, changes its outputs too much to compare"
        )
    return compared


def _steps(source: nn.Module, plain: Sequence[Tensor]) -> list[float]:
    """Returns the eps of each output. What is in float64, as every number of Python, was computed as the parameters."""
    held = [torch.finfo(p.dtype).eps for p in source.parameters() if p.is_floating_point()]
    own = [torch.finfo(x.dtype).eps for x in plain]
    return [max([eps, *held]) if x.dtype == torch.float64 else eps for eps, x in zip(own, plain, strict=True)]


def _budget(roads: Sequence[_Road], output: int, eps: float) -> float:
    """Returns the largest error of an output that rounding explains; each run is compared with its own reference."""
    errors = [largest(outputs[output].double() - reference[output]) for outputs, reference in roads]
    values = max(largest(reference[output]) for _, reference in roads)
    return 2 * (max(errors) + eps * values)


def _predictions(
    plain: Sequence[Tensor], results: Sequence[Tensor], labels: Tensor | None
) -> tuple[int | None, int | None, float | None, float | None]:
    """Counts predictions and those that changed, and shares of labels met, where the first output is scores."""
    if not plain or not results or plain[0].ndim != 2 or plain[0].shape[1] < 2 or results[0].shape != plain[0].shape:
        return None, None, None, None
    before, after = plain[0].argmax(1), results[0].argmax(1)
    changed = int((before != after).sum())
    if labels is None:
        return len(before), changed, None, None
    shares = [(found == labels.to(found.device)).double().mean().item() for found in (before, after)]
    return len(before), changed, shares[0], shares[1]
