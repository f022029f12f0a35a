"""Boxes of pixels at random places, one for each image of a batch."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def random_boxes(
    size: Int[Tensor, "2 batch"], image: tuple[int, int], generator: torch.Generator
) -> Bool[Tensor, "batch rows cols"]:
    """Places a box in each image, its centre uniform over the pixels, and cuts it at the border.

    A box of r rows with its centre on row i covers rows i − ⌊r/2⌋ up to, but without, i − ⌊r/2⌋ + r; columns likewise.
    `size` holds rows and columns of each box, `image` those of the images; all is on the generator's device.

    Example:
        >>> random_boxes(torch.tensor([[9], [1]]), (4, 3), torch.Generator().manual_seed(0)).int().tolist()
        [[[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]]]
    """
    batch, device = size.shape[1], generator.device
    inside = []
    for pixels, sides in zip(image, size, strict=True):
        centre = torch.randint(pixels, (batch,), generator=generator, device=device)
        offset = torch.arange(pixels, device=device) - (centre - sides // 2)[:, None]
        inside.append((offset >= 0) & (offset < sides[:, None]))
    return inside[0][:, :, None] & inside[1][:, None, :]
