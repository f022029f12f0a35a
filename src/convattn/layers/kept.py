"""What a layer keeps between calls in evaluation mode, and when it is out of date."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from convattn.layers.execution import Prepared

__all__ = ["Kept"]

_ENTRIES = 8
_LARGEST = 1 << 26
"""Bytes above which a preparation is not kept."""


class Kept:
    """Preparations by key, each with a copy of the numbers it was made of.

    A preparation is used again only while those numbers are the same, however they may have been written: version
    counters miss writes through `.data`, so the numbers themselves are compared. They are few.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._entries: OrderedDict[Hashable, tuple[list[Tensor], Prepared]] = OrderedDict()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Leaves the preparations out of copies and files."""
        return Kept, ()

    def get(self, key: Hashable, numbers: Sequence[Tensor], make: Callable[[], Prepared]) -> Prepared:
        """Returns what was kept, or makes and keeps it.

        Args:
            key: All that the preparation depends on, except the numbers.
            numbers: Parameters and buffers that it depends on.
            make: Makes it.

        Returns:
            The preparation.
        """
        found = self._entries.get(key)
        if found is not None and _equal(found[0], numbers):
            self._entries.move_to_end(key)
            return found[1]
        self._entries.pop(key, None)
        with torch.inference_mode(False), torch.no_grad():  # what inference mode makes, a later backward pass refuses
            prepared = make()
            if prepared.size <= _LARGEST:
                self._entries[key] = [number.detach().clone() for number in numbers], prepared
        while len(self._entries) > _ENTRIES:
            self._entries.popitem(last=False)
        return prepared


def _equal(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    return len(old) == len(new) and all(
        a.device == b.device and a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(old, new, strict=True)
    )
