"""Measuring the conversion of a network end to end, against itself in float64."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from convattn.convert.certificate.short import dtypes, resembles, short_certificate
from convattn.convert.certificate.summation import tap_by_tap
from convattn.convert.classes import full_name
from convattn.convert.copies import copy_module
from convattn.convert.layer.same_padding import pad_same
from convattn.convert.network.running import Arguments, run
from convattn.convert.network.survey import Found
from convattn.convert.network.watch import Watch
from convattn.convert.taps import Taps, read_taps
from convattn.errors import ArgumentError, ConversionError
from convattn.functional.rounding import rounding_budget
from convattn.layers import RelativeAttention
from convattn.records import Certificate, LayerCertificate, LeftAlone, NetworkCertificate

__all__ = ["certify_network"]

_ROUNDINGS = 2
"""Runs on images with other last digits, which show what rounding does where two ways of summation agree by luck."""

_MOST = 1 / 4
"""Power of eps: where rounding may move a result by more than this share of its largest value, little is shown."""


class _Comparison(NamedTuple):
    """How far one output is from the reference.

    Attributes:
        error: Largest difference.
        rounding: What rounding explains.
        largest: Largest absolute value of the reference.
        unsteady: Whether rounding explains so much that the comparison shows little.
    """

    error: float
    rounding: float
    largest: float
    unsteady: bool = False

    @property
    def relative(self) -> float:
        """Error over largest value; not a number counts as infinite."""
        share = self.error / self.largest if self.largest else math.inf * self.error
        return 0.0 if self.error == 0 else math.inf if math.isnan(share) else share

    @property
    def share(self) -> float:
        """Share of the budget used, above 1 where the error is too large or nothing can be shown."""
        if self.rounding > self.largest or not math.isfinite(self.error + self.rounding):
            return math.inf
        return self.error / self.rounding if self.rounding else math.inf if self.error else 0.0


def certify_network(
    model: nn.Module,
    made: nn.Module,
    found: Sequence[Found],
    left: Sequence[LeftAlone],
    certificates: Mapping[str, Certificate],
    *,
    impl: str,
    given: Arguments,
) -> NetworkCertificate:
    """Runs a network in float64 and in its own dtype, and the converted one, and writes down how far they are apart.

    Args:
        model: The network.
        made: The converted one.
        found: What was converted.
        left: What was not.
        certificates: Certificate of each layer, by the convolution's first name.
        impl: Path demanded of the layers.
        given: What they are run on.

    Returns:
        The certificate.

    Raises:
        ArgumentError: The network does not take the images.
        ConversionError: The network does not run with attention layers in it, or asks them for what only a
            convolution has.
    """
    notes = ["what the network does in training mode only", "inputs on which it takes another branch"]
    low, high, reference = _references(model, found, given, notes)
    copied = copy_module(made).eval()
    layers = {name: _layer_at(copied, name) for name in certificates}
    with Watch(copied, [item.name for item in left]) as watch:
        results = _run_made(copied, given)
    exact = all(certificate.exact for certificate in certificates.values())
    compared = _compare(results, high, low, notes)
    worst = max(compared, key=lambda one: one.share if exact else one.relative)
    if not exact:
        notes.append("a bound on the error end to end: at this sharpness layers have bounds of their own only")
    alike = worst.share <= 1 if exact else resembles(worst.error, worst.rounding, worst.largest)
    entries = tuple(_entry(item, certificates[item.names[0]], watch, layers[item.names[0]]) for item in found)
    total, changed = _top1(results, high)
    return NetworkCertificate(
        direction="network_to_attention",
        source=full_name(type(model)),
        result=full_name(type(made)),
        dtype=dtypes(made),
        impl=impl,
        layers=entries,
        left_alone=(*left, *watch.calls()),
        exact=exact,
        images=given.words,
        shapes=given.shapes(),
        reference=reference,
        measured_error=worst.error,
        rounding=worst.rounding,
        largest=worst.largest,
        top1_total=total,
        top1_changed=changed,
        accuracy_before=None,
        accuracy_after=None,
        passed=alike and all(entry.passed for entry in entries),
        not_covered=tuple(notes),
    )


def _references(
    model: nn.Module, found: Sequence[Found], given: Arguments, notes: list[str]
) -> tuple[list[list[Tensor]], list[Tensor], str]:
    """Runs the network as it is, tap by tap, on images with last digits moved, and in float64.

    Copies run each time, because networks may change themselves.

    Returns:
        The results in its dtype, those that they are held against, and the dtype of these.

    Raises:
        ArgumentError: The network does not take the images.
    """
    try:
        plain = run(copy_module(model).eval(), given)
    except Exception as error:  # a foreign network may fail in any way
        raise ArgumentError(
            f"images must be what the network takes, but on {given.words} it raised {type(error).__name__}: {error}"
        ) from error
    other = run(_tap_by_tap(model, found), given)
    own = next((str(x.dtype).removeprefix("torch.") for x in plain), "its own dtype")
    try:
        exact = run(copy_module(model).eval().double(), given, torch.float64)
    except Exception as error:  # noqa: BLE001 - a network may insist on its dtype in any way
        notes.append(f"float64: the network does not run in it ({type(error).__name__}: {error})")
        return [other], [x.double() for x in plain], own
    moved = [run(copy_module(model).eval(), given.rounded_differently(seed)) for seed in range(_ROUNDINGS)]
    return [plain, other, *moved], exact, "float64"


def _tap_by_tap(model: nn.Module, found: Sequence[Found]) -> nn.Module:
    """Copies a network with its convolutions summed in another order, to see what rounding does in every layer."""
    copied = copy_module(model).eval()
    places = dict(copied.named_modules(remove_duplicate=False))

    def forward(taps: Taps, same: bool, x: Tensor) -> Tensor:
        return tap_by_tap(taps, pad_same(x, taps.geometry) if same else x)

    for item in found:
        places[item.names[0]].forward = partial(forward, read_taps(item.plain.conv), item.plain.same)
    return copied


def _run_made(network: nn.Module, given: Arguments) -> list[Tensor]:
    """Runs the converted network, which may ask its layers for what only a convolution has."""
    try:
        return run(network, given)
    except AttributeError as error:
        raise ConversionError(f"the network asks for what an attention layer does not have: {error}") from error
    except Exception as error:  # a foreign network may look at its layers in any way
        raise ConversionError(
            f"the network does not run with attention layers in it: {type(error).__name__}: {error}"
        ) from error


def _compare(
    results: Sequence[Tensor], high: Sequence[Tensor], lows: Sequence[Sequence[Tensor]], notes: list[str]
) -> list[_Comparison]:
    """Compares every output with the reference."""
    if not high:
        notes.append("the network as a whole: it returns no floating-point tensor")
        return [_Comparison(0.0, 0.0, 0.0)]
    shapes = [[tuple(x.shape) for x in one] for one in (results, high, *lows)]
    if any(other != shapes[0] for other in shapes[1:]):
        notes.append("the network as a whole: the shapes of its results follow from their numbers")
        return [_Comparison(math.inf, 0.0, math.nan)]
    compared = [_difference(results[i], high[i], [low[i] for low in lows]) for i in range(len(high))]
    if not all(math.isfinite(one.largest) and math.isfinite(one.rounding) for one in compared):
        notes.append("the network as a whole: its results are not finite")
    if any(one.unsteady for one in compared):
        notes.append("much of the network: rounding alone, or what it keeps between runs, moves its results far")
    return compared


def _difference(result: Tensor, high: Tensor, lows: Sequence[Tensor]) -> _Comparison:
    """Compares one output; where the network itself is not finite, nothing can be shown."""
    if not high.numel():
        return _Comparison(0.0, 0.0, 0.0)
    error = (result.double() - high).abs().max().item()
    rounding, largest = rounding_budget(high, lows), high.abs().max().item()
    most = torch.finfo(result.dtype).eps ** _MOST * largest
    return _Comparison(error, rounding, largest, unsteady=rounding > most)


def _top1(results: Sequence[Tensor], high: Sequence[Tensor]) -> tuple[int | None, int | None]:
    """Counts predictions, and those that changed, where the first output is one of scores."""
    if not high or not results or high[0].ndim != 2 or high[0].shape[1] < 2 or results[0].shape != high[0].shape:
        return None, None
    changed = results[0].argmax(1) != high[0].argmax(1)
    return len(changed), int(changed.sum())


def _layer_at(network: nn.Module, name: str) -> RelativeAttention:
    """Finds the attention layer in the place of a convolution."""
    place = network.get_submodule(name)
    return place if isinstance(place, RelativeAttention) else place.attention  # type: ignore[return-value]


def _entry(item: Found, certificate: Certificate, watch: Watch, layer: RelativeAttention) -> LayerCertificate:
    """Writes down one layer."""
    kernel, size, notes = tuple(item.plain.conv.kernel_size), watch.content(layer), item.notes
    if size is not None:
        step = f"with gradients, or once its gate is open, its content takes {size / 2**20:.3g} MiB for an image"
        notes = (*notes, step)
    return short_certificate(certificate, item.names, kernel_size=kernel, path=watch.path(layer), notes=notes)
