"""Controls of an analysis: networks and images in which what makes heads look where they look is taken away."""

import torch
from einops import rearrange
from torch import Tensor, nn

from convattn.convert.network_runs import copy_network
from convattn.heads.head_report import SHUFFLED, UNTRAINED

CONTROLS = (SHUFFLED, UNTRAINED)
"""Controls that `analyze` can measure."""


def control_count(count: int) -> int:
    """Returns on how many of the images each control is measured: a tenth, but ten if there are as many."""
    return min(count, max(10, round(count / 10)))


def untrained(model: nn.Module, seed: int) -> nn.Module:
    """Copies a network with the entries of every parameter in another order.

    So each tensor keeps its sizes and the distribution of its numbers, and what training has arranged is gone. What is
    fixed by architecture stays: buffers, and parameters whose entries are all alike.
    """
    network = copy_network(model)
    generator = torch.Generator().manual_seed(seed)
    # Tensors of one size share an order, which takes longer to draw than to apply, but each starts elsewhere in it:
    # what two of them, as the weights of queries and keys, have in common is gone as well.
    orders: dict[int, Tensor] = {}
    with torch.no_grad():
        for parameter in network.parameters():
            count = parameter.numel()
            if count not in orders:
                orders[count] = torch.randperm(count, generator=generator)
            order = orders[count].to(parameter.device)
            start = int(torch.randint(max(count, 1), (), generator=generator))
            entries = parameter.flatten().index_select(0, order).roll(start)
            parameter.copy_(entries.view(parameter.shape))
    return network


_PIXELS = "channels (rows height) (cols width)"
_PATCHES = "(rows cols) channels height width"
"""Axes of an image and of its patches; a sequence is an image of one row."""


def can_shuffle(shape: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """Says whether an image can be cut into patches, one for each position of the first layer's grid."""
    if len(shape) == 1:
        return len(grid) == 1
    if len(grid) > 2 or len(shape) != len(grid) + 1:
        return False
    return all(size >= cells for size, cells in zip(shape[1:], grid, strict=True))


def shuffled(image: Tensor, grid: tuple[int, ...], seed: int) -> Tensor:
    """Puts the patches of an image in another order; what does not fill a patch, at the far edges, stays.

    Of token ids the first and the last stay as well, because most tokenizers put marks there. A wave is one channel.
    """
    generator = torch.Generator().manual_seed(seed)
    if image.ndim == 1 and not image.is_floating_point():
        order = torch.randperm(max(len(image) - 2, 0), generator=generator).to(image.device)
        return torch.cat([image[:1], image[1 + order], image[1:][-1:]])
    copy = image.clone(memory_format=torch.contiguous_format)
    picture = copy
    if len(grid) == 1:
        grid = (1, *grid)
        picture = copy.view(-1, 1, copy.shape[-1])
    rows, cols = grid
    _, height, width = picture.shape
    region = picture[:, : height // rows * rows, : width // cols * cols]
    cut = rearrange(region, f"{_PIXELS} -> {_PATCHES}", rows=rows, cols=cols)
    order = torch.randperm(len(cut), generator=generator).to(image.device)
    region.copy_(rearrange(cut[order], f"{_PATCHES} -> {_PIXELS}", rows=rows, cols=cols))
    return copy
