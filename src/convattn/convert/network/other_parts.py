"""What networks return beside floating-point numbers: labels, masks, text, structure. It is compared part by part."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from convattn.records.words import some

Parts = Mapping[str, Any]
"""The parts of an output by their places in it, as Python writes them; floating-point numbers as `FLOATING`."""

FLOATING = type("Floating", (), {})()
"""Stands for numbers that are compared elsewhere, as tensors."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def other_parts(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each part of nested tuples, lists, mappings and dataclasses with its place, like "['boxes'][0].label"."""
    if is_floating(value):
        yield place, FLOATING
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from other_parts(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from other_parts(item, f"{place}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from other_parts(getattr(value, field.name), f"{place}.{field.name}")
    else:
        yield place, value


def is_floating(value: Any) -> bool:
    """Tells whether a value is a tensor or a finite number of Python that is floating-point or complex."""
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, float | complex) and math.isfinite(abs(value))


def compare_parts(
    plain: Sequence[Parts], made: Sequence[Parts], again: Sequence[Sequence[Parts]]
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
            apart, moved = _apart(one, two, place), [_apart(one, run[batch], place) for run in again]
            most = max(count or 0 for count in moved)
            if apart is None or None in moved:
                kind = type(one[place]).__name__
                uncompared.setdefault(f"a part of type {kind} is not compared", []).append(name)
            elif most:
                uncompared.setdefault("rounding, or state kept between runs, changes it, too", []).append(name)
            if (apart or 0) > 2 * most:
                differing.append(name)
    told = [f"{some(list(dict.fromkeys(names)))}: {reason}" for reason, names in uncompared.items()]
    return list(dict.fromkeys(differing)), told


def _apart(one: Parts, two: Parts, place: str) -> int | None:
    """Counts the elements in which a part differs; None if it cannot be compared."""
    missing = object()
    first, second = one.get(place, missing), two.get(place, missing)
    if first is second:
        return 0
    if type(first) is not type(second):
        return 1
    if isinstance(first, Tensor):
        return _elements_apart(first, second)
    return int(repr(first) != repr(second)) if isinstance(first, _PLAIN) else None  # repr: nan is nan, -0.0 is not 0.0


def _elements_apart(first: Tensor, second: Tensor) -> int | None:
    if any(x.layout is not torch.strided or x.is_quantized or x.is_meta for x in (first, second)):
        return None
    if first.shape != second.shape or first.dtype != second.dtype:
        return max(1, first.numel(), second.numel())
    return int((first != second).sum())
