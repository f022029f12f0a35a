"""Whether the operations of a network from outside fit each other, from the picture to the class scores."""

from collections.abc import Sequence
from typing import Any

from convattn.errors import ArgumentError, must_be
from convattn.fields import fits, read
from convattn.viewer.form import Count, NetworkForm, PaddingForm, PositionForm, Positive
from convattn.viewer.named import Named

__all__ = ["require_program"]


def require_program(program: Sequence[dict[str, Any]], network: NetworkForm, key: str, named: Named) -> None:
    """Raises ArgumentError unless each operation is known and takes as many channels as the one before has made."""
    assert network.input is not None
    channels, kept = len(network.input.mean), []
    for number, operation in enumerate(program):
        place = f"{key}[{number}]"
        match operation.get("op"):
            case "keep":
                kept.append(channels)
            case "add":
                if not kept or kept.pop() != channels:
                    raise ArgumentError(f"{place} adds features that were not put aside, or of another size")
            case "linear":
                channels = _mapped(operation, channels, place, named, axes=2)
            case "convolve":
                channels = _convolved(operation, channels, place, named)
            case "attention":
                channels = _attended(operation, channels, network, place, named)
            case _:
                _require_simple(operation, channels, place, named)


def _require_simple(operation: dict[str, Any], channels: int, place: str, named: Named) -> None:
    """Checks an operation that keeps the channels."""
    numbers = {"maxpool": {"size": Count}, "divide": {"by": Positive}, "normalise": {"eps": float}}
    known = {"gelu", "max", "mean", "scale", *numbers}
    if not isinstance(kind := operation.get("op"), str) or kind not in known:
        raise ArgumentError(must_be(f"{place}.op", "an operation that the page knows", kind))
    for name, wanted in numbers.get(kind, {}).items():
        read(wanted, operation.get(name), f"{place}.{name}")
    for name in ("scale", "shift") if kind in ("scale", "normalise") else ():
        named.floats(operation.get(name), f"{place}.{name}", (channels,))


def _mapped(operation: dict[str, Any], inputs: int, place: str, named: Named, *, axes: int) -> int:
    """Checks a matrix, or a kernel; returns how many channels come out."""
    weight = named.floats(operation.get("weight"), f"{place}.weight", (None, inputs, *[None] * (axes - 2)))
    if operation.get("bias") is not None:
        named.floats(operation["bias"], f"{place}.bias", weight.shape[:1])
    return weight.shape[0]


def _convolved(operation: dict[str, Any], channels: int, place: str, named: Named) -> int:
    pair = tuple[Count, Count]
    for name, wanted in (("stride", pair), ("dilation", pair), ("groups", Count), ("padding", PaddingForm)):
        read(wanted, operation.get(name), f"{place}.{name}")
    groups = operation["groups"]
    outputs = _mapped(operation, channels // groups, place, named, axes=4)
    if channels % groups or outputs % groups:
        raise ArgumentError(must_be(f"{place}.groups", f"a divisor of {channels} and {outputs}", groups))
    return outputs


def _attended(operation: dict[str, Any], channels: int, network: NetworkForm, place: str, named: Named) -> int:
    number = operation.get("layer")
    layers = dict(enumerate(network.layers))
    attention = layers[number].attention if fits(number, int) and number in layers else None
    if not isinstance(attention, PositionForm) or attention.values is None:
        raise ArgumentError(must_be(f"{place}.layer", "the number of a layer that the page computes", number))
    values = named.floats(attention.values, f"{place}.layer")
    if values.shape[2] * attention.groups != channels:
        raise ArgumentError(f"{place} gives {channels} channels to a layer of {values.shape[2] * attention.groups}")
    return values.shape[1]
