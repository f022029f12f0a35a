"""Values that are held within a number of bytes, each made once."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Kept"]

Value = TypeVar("Value")


@dataclass
class _Held(Generic[Value]):
    """What is being made, or was made."""

    lock: threading.Lock
    value: Value | None = None
    size: int = 0


class Kept(Generic[Value]):
    """Values by key within a number of bytes; each is made once, however many ask for it at the same time.

    What was asked for longest ago goes first. A value that is larger than the bound alone is returned and not held.
    """

    def __init__(self, limit: int, make: Callable[[Any], Value], size: Callable[[Value], int]) -> None:
        """Takes the bound in bytes, what makes the value of a key, and how large a value is."""
        self._limit, self._make, self._size = limit, make, size
        self._held: OrderedDict[Hashable, _Held[Value]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes that are held."""
        with self._lock:
            return sum(one.size for one in self._held.values())

    def get(self, key: Hashable) -> Value:
        """Returns the value of a key; whoever comes while it is being made waits for it."""
        with self._lock:
            one = self._held.setdefault(key, _Held(threading.Lock()))
            self._held.move_to_end(key)
        with one.lock:
            if one.value is None:
                one.value = self._make(key)
                with self._lock:
                    one.size = self._size(one.value)
                    self._drop()
            return one.value

    def _drop(self) -> None:
        total = sum(one.size for one in self._held.values())
        for key in [key for key, one in self._held.items() if one.size]:
            if total <= self._limit:
                return
            total -= self._held.pop(key).size
