"""The inputs and outputs of attention modules, put in the order of the grid."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.adapters.attention.layout import Layout


def on_grid(x: Any, layout: Layout, images: int) -> Float[Tensor, "images positions channels"] | None:
    """Returns what a module was given or gave out, position by position; None where it has no such order.

    Understood are tokens in the order of the queries, in groups or with prefix tokens; a grid row by row; and images
    with their channels first or last.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return None
    groups, queries = layout.queries.shape
    if x.ndim == 4 and x.shape[0] == images and len(layout.grid) == 2:
        first, last = tuple(x.shape[2:]) == layout.grid, tuple(x.shape[1:3]) == layout.grid
        if first != last:
            return x.flatten(2).mT if first else x.flatten(1, 2)
    if len(layout.grid) == x.ndim - 2 and x.shape[0] == images and tuple(x.shape[2:]) == layout.grid and x.ndim != 4:
        return x.flatten(2).mT if x.ndim > 3 or queries != x.shape[1] else None
    if tuple(x.shape[:-1]) == (images, layout.positions):
        return x
    tokens = x.flatten(1, -2) if x.ndim > 3 and x.shape[0] == images * groups else x
    if tuple(tokens.shape[:-1]) != (images * groups, queries):
        return None
    flat = tokens.reshape(images, groups * queries, -1)
    place = layout.queries.flatten().to(x.device)
    found = flat.new_zeros(images, layout.positions, flat.shape[-1])
    found[:, place[place >= 0]] = flat[:, place >= 0]
    return found
