"""Memory that is used again within one call, and parts of a call that are small enough for it."""

from math import prod

import torch
from torch import Tensor

PIECE_BYTES = 1 << 22
"""Bytes of scores, weights or means that are worked on at a time on a CPU."""

KEPT_BYTES = 1 << 26
"""Bytes of all weights of a call up to which a CPU keeps them: a step with content takes 0.8 to 0.9 of the time."""

_SHARE = 64
"""Share of a GPU's memory that these may take: 1.2 GiB of 80, so that one image or a hundred are one piece."""


def piece_bytes(device: torch.device) -> int:
    """Returns how many bytes of scores, weights or means a call has in memory at a time."""
    if device.type == "cpu":
        return PIECE_BYTES
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // _SHARE
    return 1 << 30


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
