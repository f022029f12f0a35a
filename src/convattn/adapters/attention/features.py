"""The inputs and outputs of attention modules, put in the order of the grid."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.adapters.attention.layout import Layout


def on_grid(x: Any, layout: Layout, images: int) -> Float[Tensor, "images positions channels"] | None:
    """Returns what a module was given or gave out, position by position; None where it has no such order.

    Understood are images of the grid's size with their channels first or last, the grid as a list, and tokens in the
    order of the queries, in groups or with prefix tokens.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 3:
        return None
    groups, queries = layout.queries.shape
    shape, sizes = tuple(x.shape), tuple(layout.grid)
    tokens = (images * groups, queries)
    first, last = (shape[0], shape[2:]) == (images, sizes), shape[:-1] == (images, *sizes)
    if len(sizes) > 1 and first != last:  # both, where there are as many channels as rows and columns: not known
        return x.flatten(2).mT if first else x.flatten(1, -2)
    if shape[:-1] == (images, layout.positions) and shape[:-1] != tokens:
        return x
    if shape[:-1] in (tokens, (images, groups, queries)) or (shape[0] == tokens[0] and x[0, ..., 0].numel() == queries):
        return _by_position(x.reshape(images, groups * queries, -1), layout)
    return None


def _by_position(
    tokens: Float[Tensor, "images tokens channels"], layout: Layout
) -> Float[Tensor, "images positions channels"] | None:
    """Puts tokens in the order of the queries at their positions; None unless every position has one."""
    place = layout.queries.flatten().to(tokens.device)
    inside = place >= 0
    count = layout.positions
    if int(inside.sum()) != count:
        return None
    first = int(inside.int().argmax())
    if torch.equal(place[first : first + count], torch.arange(count, device=place.device)):
        return tokens.narrow(1, first, count)  # in order already
    found = tokens.new_zeros(tokens.shape[0], layout.positions, tokens.shape[-1])
    found[:, place[inside]] = tokens[:, inside]
    return found
