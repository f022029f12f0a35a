"""The checks of types and shapes that the whole test run makes: each finds a fault that is planted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int, TypeCheckError
from tests.type_checks import check_once
from tests.typechecker import typechecked
from torch import Tensor

from convattn.data import normalise

if TYPE_CHECKING:
    from nowhere import Unknown

checked = check_once(typechecker=typechecked)


@checked
def add(x: Float[Tensor, "n"], y: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return x + y


@checked
def join(x: Float[Tensor, "n"], times: int = 1) -> Float[Tensor, "n"]:
    return torch.cat([x] * times)


@checked
def halve(x: float, *rest: int, **named: str) -> float:
    return x / 2 if x >= 0 else "negative"


@checked
def listed(many: list[Float[Tensor, "n"]]) -> Iterator[int]:
    yield from range(len(many))


@checked
def anything(x: "Unknown") -> "int":
    return x


@checked
@dataclass(frozen=True)
class Pair:
    first: Int[Tensor, "n"]
    second: Int[Tensor, "n"]


def floats(count):
    return torch.ones(count)


FAULTS = {
    "sizes that differ": lambda: add(floats(2), floats(3)),
    "another dtype": lambda: add(floats(2), y=floats(2).int()),
    "size of what is returned": lambda: join(floats(2), times=2),
    "type of one of many": lambda: halve(1.0, 2, "3"),
    "type by name": lambda: halve(1.0, name=2),
    "type of what is returned": lambda: halve(-1.0),
    "dtype within a list": lambda: listed([floats(2).int()]),
    "type that is returned, by name": lambda: anything("1"),
    "fields": lambda: Pair(floats(2).int(), floats(3).int()),
    "function of the package": lambda: normalise(floats(2), (0.5,), (0.5,)),
}


def test_faults_are_found():
    missed = []
    for name, fault in FAULTS.items():
        try:
            fault()
        except TypeCheckError:
            continue
        missed.append(name)
    assert missed == []


def test_what_is_right_passes():
    assert add(floats(2), floats(2)).sum() == 4
    assert add(join(floats(3)), floats(3)).sum() == 6  # sizes are those of one call
    assert halve(3, 4, name="five") == 1.5  # an int is a float
    assert list(listed([floats(2)])) == [0]
    assert anything(3) == 3
    assert Pair(floats(2).int(), second=floats(2).int()).first.sum() == 2


def test_checks_are_turned_off(without_type_checks):
    assert halve(-1.0) == "negative"
    assert join(floats(2), times=2).sum() == 4
