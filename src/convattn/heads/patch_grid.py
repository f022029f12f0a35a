"""The grid of patches for which heads were measured: a network refuses images that it cuts into another."""

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from convattn.errors import ShapeError
from convattn.heads.head_report import LayerReport


@final
@dataclass(frozen=True)
class PatchGrid:
    """Forward hook of the convolution that cuts images into patches: refuses other rows and columns of them.

    An attention layer receives a sequence of tokens, whose number does not tell 2 × 8 from 4 × 4 patches.

    Attributes:
        sizes: Rows and columns on which heads were measured.
    """

    sizes: tuple[int, ...]

    def __call__(self, _module: nn.Module, _arguments: tuple[Any, ...], patches: Tensor) -> None:
        """Raises ShapeError if an image was cut into other rows and columns."""
        sizes = tuple(patches.shape[2:])
        if sizes != self.sizes:
            raise ShapeError(
                f"images must be cut into {_words(self.sizes)} patches, on which the heads were measured, but these are"
                f" cut into {_words(sizes)}"
            )


def _words(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


def fix_grid(network: nn.Module, layer: LayerReport) -> None:
    """Lets the convolution that cuts the images of a layer refuse other grids."""
    source = network.get_submodule(layer.grid_source)
    guard = PatchGrid(layer.grid)
    if guard not in source._forward_hooks.values():
        source.register_forward_hook(guard)
