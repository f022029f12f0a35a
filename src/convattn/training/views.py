"""Several views of the same test images, whose scores are averaged."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Views = Literal["none", "mirror", "mirror_shift"]
"""Which views there are; see `views`."""


def views(
    images: Float[Tensor, "batch channels rows cols"], kind: Views
) -> list[tuple[float, Float[Tensor, "batch channels rows cols"]]]:
    """Returns views of normalised images, each after its share in the mean of their scores.

    "mirror" adds the mirror images; "mirror_shift" adds to these two, which then count a quarter each, both moved by
    one pixel down and right and up and left, an eighth each, with reflected borders.

    Example:
        >>> import torch
        >>> [share for share, _ in views(torch.zeros(1, 1, 4, 4), "mirror_shift")]
        [0.25, 0.25, 0.125, 0.125, 0.125, 0.125]
    """
    if kind == "none":
        return [(1.0, images)]
    if kind == "mirror":
        return [(0.5, images), (0.5, images.flip(-1))]
    rows, cols = images.shape[2:]
    framed = F.pad(images, (1, 1, 1, 1), mode="reflect")
    moved = [framed[..., start : start + rows, start : start + cols] for start in (0, 2)]
    shares = [(0.25, images), *((0.125, part) for part in moved)]
    return [(share, view) for share, part in shares for view in (part, part.flip(-1))]
