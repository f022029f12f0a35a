"""What a case is to the runner: data with a name, which builds its contenders the same in every process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from benchmarks.record import Check
from benchmarks.setting import Setting
from convattn.layers import FrozenAttention, RelativeAttention


@dataclass(frozen=True, eq=False)
class Contender:
    """Something that takes part in a case.

    Attributes:
        call: What is timed.
        describe: Returns what it is, and the path that the library's layers take; None of a peer.
        check: Compares what it computes with the definition; None where it computes another function.
        warm_up: A small call of the same kind, which loads all code before memory is measured; None without one.
        weights: Bytes of parameters, buffers and frozen matrices; None where not counted.
        ours: Whether it is this library's own; if it does not run, that is an error and not a finding.
    """

    call: Callable[[], object]
    describe: Callable[[], tuple[str, str | None]]
    check: Callable[[], Check] | None = None
    warm_up: Callable[[], object] | None = None
    weights: int | None = None
    ours: bool = False


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    """Contenders that take turns.

    Attributes:
        name: Name of the case, as `--case` takes it.
        group: Name of the group of cases that differ in size only; empty for a group of its own.
        memory: Whether peak memory is measured, each contender in a process of its own.
        seed: Seed of weights and images.
    """

    name: str
    group: str = ""
    memory: bool = True
    seed: int = 0

    @property
    @abstractmethod
    def title(self) -> str:
        """What is measured, in words."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of what a call is given: images, channels, and pixels along each axis."""

    @property
    def turns(self) -> int:
        """Calls in place of one round."""
        return 1

    @abstractmethod
    def contenders(self, setting: Setting) -> Mapping[str, Callable[[], Contender]]:
        """Returns what builds each contender, by its name; references that they share are made once."""


def bytes_held(module: nn.Module) -> int:
    """Counts the bytes of parameters, buffers and frozen matrices."""
    frozen = sum(layer.nbytes for layer in module.modules() if isinstance(layer, FrozenAttention))
    return frozen + sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def path_taken(module: object, shape: tuple[int, ...]) -> str | None:
    """Returns the path that a layer takes in its present mode for images of a shape; None of a peer."""
    return module.plan(shape).path if isinstance(module, RelativeAttention) else None
