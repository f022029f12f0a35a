"""Controls: the same network with its weights shuffled, and the same images with their patches shuffled."""

import copy

import torch
from einops import rearrange
from torch import Tensor, nn

UNTRAINED = "untrained weights"
SHUFFLED = "shuffled images"

_PATCHES = {
    1: ("channels (cells length)", "cells channels length", ("cells",)),
    2: ("channels (rows height) (cols width)", "(rows cols) channels height width", ("rows", "cols")),
}
"""An image and its patches, by the number of axes of the grid."""


def untrained(model: nn.Module, seed: int) -> nn.Module:
    """Copies a network with the entries of every parameter in another order.

    So each tensor keeps its sizes and the distribution of its numbers, and what training has arranged is gone. What is
    fixed by architecture stays: buffers, and parameters whose entries are all alike.
    """
    made = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(seed)
    # Tensors of one size share an order, which takes longer to draw than to apply, but each starts elsewhere in it:
    # what two of them, as the weights of queries and keys, have in common is gone as well.
    orders: dict[int, Tensor] = {}
    with torch.no_grad():
        for parameter in made.parameters():
            count = parameter.numel()
            if count not in orders:
                orders[count] = torch.randperm(count, generator=draw)
            order = orders[count].to(parameter.device)
            start = int(torch.randint(max(count, 1), (), generator=draw))
            parameter.copy_(parameter.flatten().index_select(0, order).roll(start).view(parameter.shape))
    return made


def can_shuffle(shape: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """Says whether an image can be cut into patches, one for each position of the first layer's grid."""
    sizes = shape[-len(grid) :]
    if len(shape) == 1:
        return len(grid) == 1
    return len(grid) in _PATCHES and len(shape) == len(grid) + 1 and all(map(int.__ge__, sizes, grid))


def shuffled(image: Tensor, grid: tuple[int, ...], seed: int) -> Tensor:
    """Puts the patches of an image in another order; what does not fill a patch, at the far edges, stays.

    An image without channels is a sequence of tokens, whose first and last stay: most tokenizers put marks there.
    """
    draw = torch.Generator().manual_seed(seed)
    if image.ndim == 1:
        inner = 1 + torch.randperm(max(len(image) - 2, 0), generator=draw).to(image.device)
        return torch.cat([image[:1], image[inner], image[1:][-1:]])
    sizes = [size // cells for size, cells in zip(image.shape[1:], grid, strict=True)]
    made = image.clone()
    part = made[:, *(slice(cells * size) for cells, size in zip(grid, sizes, strict=True))]
    pixels, patches, lengths = _PATCHES[len(grid)]
    known = dict(zip(lengths, grid, strict=True))
    flat = rearrange(part, f"{pixels} -> {patches}", **known)
    mixed = flat[torch.randperm(len(flat), generator=draw).to(image.device)]
    part.copy_(rearrange(mixed, f"{patches} -> {pixels}", **known))
    return made
