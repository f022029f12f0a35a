"""Padded images and query positions by index lists, independent of `convattn.grid` and of torch's padding."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

__all__ = ["HOLE", "key_index", "take_keys"]

HOLE = -1
"""Index of a pixel that is not in the image and holds zero."""

_NUMPY_MODES: dict[str, Literal["reflect", "edge", "wrap"]] = {
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}


def key_index(size: int, pads: tuple[int, int], mode: str, step: int = 1) -> list[int]:
    """Lists, for each pixel of the padded line, the pixel of the image that it shows, or `HOLE`.

    `pads` are the pixels added before and after; negative ones are cropped off in the end. `step` is the distance of
    the image's pixels on the padded line; the gaps are holes.

    Example:
        >>> key_index(3, (2, 1), "reflect"), key_index(2, (1, -1), "zeros", step=2)
        ([2, 1, 0, 1, 2, 1], [-1, 0, -1])
    """
    line = np.full((size - 1) * step + 1, HOLE)
    line[::step] = np.arange(size)
    grown = [max(pad, 0) for pad in pads]
    if mode == "zeros":
        line = np.pad(line, grown, constant_values=HOLE)
    else:
        line = np.pad(line, grown, mode=_NUMPY_MODES[mode])
    return line[max(-pads[0], 0) : len(line) - max(-pads[1], 0)].tolist()


def take_keys(
    x: Shaped[Tensor, "batch channels *spatial"], indices: Sequence[Sequence[int]]
) -> Shaped[Tensor, "batch channels *keys"]:
    """Takes pixels by one list of indices per axis, as `key_index` makes it; holes are zero.

    Example:
        >>> take_keys(torch.tensor([[[3.0, 4.0]]]), [[1, HOLE, 0]]).tolist()
        [[[4.0, 0.0, 3.0]]]
    """
    for dim, index in enumerate(indices, start=2):
        shape = list(x.shape)
        shape[dim] = 1
        with_hole = torch.cat([x, x.new_zeros(shape)], dim)
        places = [x.shape[dim] if entry == HOLE else entry for entry in index]
        x = with_hole.index_select(dim, torch.tensor(places, device=x.device))
    return x
