"""Colour photographs that come with scikit-learn."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from einops import rearrange
from jaxtyping import UInt8
from torch import Tensor

from convattn.errors import MissingDependencyError, UnknownNameError

PHOTOGRAPHS: Mapping[str, str] = MappingProxyType(
    {
        "china": "danielbuechele, flickr.com/photos/danielbuechele/6061409035, CC BY 2.0",
        "flower": "vultilion, flickr.com/photos/vultilion/6056698931, CC BY 2.0",
    }
)
"""Photographer, page and licence of each photograph, by its name."""


@dataclass(frozen=True, eq=False)
class Photograph:
    """A colour photograph."""

    pixels: UInt8[Tensor, "3 rows cols"]  # Values 0 to 255, (channels, rows, cols), channels red, green, blue
    name: str  # A key of `PHOTOGRAPHS`
    credit: str  # Photographer, page and licence; to be shown with the photograph


def load_photograph(name: str = "china") -> Photograph:
    """Loads a photograph of 427 rows and 640 columns.

    Args:
        name: "china" (a pagoda by a lake) or "flower" (a dahlia).

    Returns:
        The photograph, on the CPU.

    Raises:
        UnknownNameError: There is no photograph of that name.
        MissingDependencyError: scikit-learn is not installed.

    Example:
        >>> load_photograph("china").pixels.shape
        torch.Size([3, 427, 640])
    """
    if name not in PHOTOGRAPHS:
        raise UnknownNameError("photograph", name, PHOTOGRAPHS)
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingDependencyError("scikit-learn", "train") from None
    rows = torch.from_numpy(datasets.load_sample_image(f"{name}.jpg").copy())
    return Photograph(rearrange(rows, "rows cols channels -> channels rows cols").contiguous(), name, PHOTOGRAPHS[name])
