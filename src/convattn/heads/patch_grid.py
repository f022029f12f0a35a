"""The grid of patches for which heads were measured: a network refuses images that it cuts into another."""

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from convattn.errors import ShapeError
from convattn.heads.head_report import LayerReport


@final
@dataclass(frozen=True)
class PatchGrid:
    """Hook that refuses images of another size than those for which heads were measured.

    After the convolution that cuts images it sees the rows and columns of patches: an attention layer receives a
    sequence of tokens, whose number does not tell 2 × 8 from 4 × 4. Before a network without such a convolution it sees
    the images.

    Attributes:
        sizes: Rows and columns on which heads were measured.
        words: What an image is, with its sizes.
    """

    sizes: tuple[int, ...]
    words: str = "cut into {} patches"

    def __call__(
        self, _module: nn.Module, arguments: tuple[Any, ...], rest: Tensor | dict[str, Any]
    ) -> None:
        """Raises ShapeError for other sizes; `rest` is what the convolution gave out, or named arguments."""
        if isinstance(rest, Tensor):
            seen = [rest]
        else:
            seen = [part for part in (*arguments, *rest.values()) if isinstance(part, Tensor)]
        sizes = tuple(seen[0].shape[2:])
        if sizes != self.sizes:
            raise ShapeError(
                f"images must be {self.words.format(_words(self.sizes))}, on which the heads were measured, but"
                f" these are {self.words.format(_words(sizes))}"
            )


def _words(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


def fix_grid(network: nn.Module, layer: LayerReport, image: tuple[int, ...]) -> None:
    """Lets the convolution that cuts the images of a layer refuse other grids, or the network images of other sizes."""
    if layer.grid_source:
        source = network.get_submodule(layer.grid_source)
        guard = PatchGrid(layer.grid)
        if guard not in source._forward_hooks.values():
            source.register_forward_hook(guard)
        return
    guard = PatchGrid(image[1:], "of {} pixels")
    if guard not in network._forward_pre_hooks.values():
        network.register_forward_pre_hook(guard, with_kwargs=True)
