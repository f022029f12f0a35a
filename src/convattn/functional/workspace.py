"""Memory that is used again within one call, and parts of a call that are small enough for it."""

from math import prod

from torch import Tensor


class Workspace:
    """Memory that is reused within one call, with the dtype and device of a given tensor."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._held: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor:
        """Returns an uninitialised, contiguous tensor in the memory that the last tensor of this name had."""
        size = prod(shape)
        held = self._held.get(name)
        if held is None or held.numel() < size:
            held = self._held[name] = self._like.new_empty(size)
        return held[:size].view(shape)


def chunks(length: int, size: int) -> list[slice]:
    """Cuts positions into chunks of a size; the last may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
