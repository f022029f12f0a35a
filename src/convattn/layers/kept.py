"""What a layer keeps between calls in evaluation mode, and when it is out of date."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from weakref import ref

import torch
from torch import Tensor

from convattn.encodings import Encoding
from convattn.layers.call import Call
from convattn.layers.execution import Prepared, prepare

__all__ = ["Kept"]

_ENTRIES = 8
_LARGEST = 1 << 26
"""Bytes above which a preparation is not kept."""


class Kept:
    """Preparations by key, each with the encoding it was made of and a copy of its numbers.

    A preparation is used again only for the same encoding and while those numbers are the same, however they may have
    been written: version counters miss writes through `.data`, so the numbers themselves are compared. They are few.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._entries: OrderedDict[Hashable, tuple[ref[Encoding], list[Tensor], Prepared]] = OrderedDict()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Leaves the preparations out of copies and files."""
        return Kept, ()

    def prepare(self, call: Call, *, training: bool) -> Prepared:
        """Prepares a call; in evaluation without gradients, returns what was kept of an earlier one.

        Args:
            call: What is to be computed.
            training: Whether the layer is in training mode.

        Returns:
            The preparation.

        Raises:
            ArgumentError: The path demanded cannot compute the call.
        """
        if training or call.learns_encoding or not call.values_known:
            return prepare(call)
        key = (call.work, call.axes, call.impl, call.dtype, call.device)
        numbers = [*call.encoding.parameters(), *call.encoding.buffers()]
        found = self._entries.get(key)
        if found is not None and found[0]() is call.encoding and _equal(found[1], numbers):
            self._entries.move_to_end(key)
            return found[2]
        self._entries.pop(key, None)
        with torch.inference_mode(False), torch.no_grad():  # what inference mode makes, a later backward pass refuses
            prepared = prepare(call)
            if prepared.size <= _LARGEST:
                self._entries[key] = ref(call.encoding), [number.detach().clone() for number in numbers], prepared
        while len(self._entries) > _ENTRIES:
            self._entries.popitem(last=False)
        return prepared


def _equal(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    return len(old) == len(new) and all(
        a.device == b.device and a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(old, new, strict=True)
    )
