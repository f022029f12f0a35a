"""Controls of an analysis: which there are, on how many images, and images with their patches shuffled."""

import torch
from einops import rearrange
from torch import Tensor

from convattn.heads.head_report import SHUFFLED, UNTRAINED

CONTROLS = (SHUFFLED, UNTRAINED)
"""Controls that `analyze` can measure."""


def control_count(count: int) -> int:
    """Returns on how many of the images each control is measured: a tenth, but ten if there are as many."""
    return min(count, max(10, round(count / 10)))


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
        order = torch.randperm(max(len(image) - 2, 0), generator=generator, device="cpu").to(
            image.device
        )
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
    order = torch.randperm(len(cut), generator=generator, device="cpu").to(image.device)
    region.copy_(rearrange(cut[order], f"{_PATCHES} -> {_PIXELS}", rows=rows, cols=cols))
    return copy
