"""The grid of patches into which a network cuts the images of a batch, read where they are cut."""

from typing import Any, final

from torch import nn

from convattn.convert.surgery import full_name
from convattn.errors import ShapeError
from convattn.heads.catalogue import PATCH_COUNTERS
from convattn.heads.families.attention_class import PatchCounter


@final
class PatchGrid:
    """Rows and columns of the patches of the last image batch.

    An attention layer receives a sequence of tokens, whose number does not tell 2 × 8 from 4 × 4 patches. So the grid
    is a forward pre-hook of the module that cuts images into patches, and reads the sizes from its input.

    Attributes:
        sizes: Rows and columns.
        count: Returns rows and columns, given that module and the height and width of an image.
        fixed: Whether images that are cut into other rows and columns are refused.
    """

    def __init__(self, sizes: tuple[int, ...], count: PatchCounter, *, fixed: bool = False) -> None:
        """Starts with the sizes for the network's own images."""
        self.sizes = sizes
        self.count = count
        self.fixed = fixed

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Reads the sizes from an image, as a forward pre-hook; raises ShapeError if they are fixed and others."""
        if not arguments:
            return
        height, width = arguments[0].shape[-2:]
        sizes = self.count(module, (int(height), int(width)))
        if sizes == self.sizes:
            return
        if self.fixed:
            raise ShapeError(
                f"images must be cut into {_words(self.sizes)} patches, on which the heads were measured, but these are"
                f" cut into {_words(sizes)}"
            )
        self.sizes = sizes

    def require(self, tokens: int, prefix: int) -> tuple[int, ...]:
        """Returns rows and columns; raises ShapeError if the tokens are not `prefix` tokens and as many patches."""
        rows, cols = self.sizes
        expected = prefix + rows * cols
        if tokens != expected:
            parts = f"{prefix} prefix and {_words(self.sizes)} patches"
            raise ShapeError(f"tokens must be {expected} ({parts}), but are {tokens}")
        return self.sizes

    def __repr__(self) -> str:
        """Returns the sizes, for printing."""
        return f"{_words(self.sizes)} patches"


def _words(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


def fix_grid(network: nn.Module, layer: str, sizes: tuple[int, ...]) -> None:
    """Lets the module that cuts the images of a layer refuse other grids.

    This is done if the innermost module around the layer that holds any of `PATCH_COUNTERS` holds only one.
    """
    names = layer.split(".")
    for depth in reversed(range(len(names))):
        around = network.get_submodule(".".join(names[:depth]))
        cutters = [part for part in around.modules() if full_name(type(part)) in PATCH_COUNTERS]
        if not cutters:
            continue
        hooks = cutters[0]._forward_pre_hooks.values()
        fixed = [hook for hook in hooks if isinstance(hook, PatchGrid) and hook.fixed]
        if len(cutters) == 1 and sizes not in [hook.sizes for hook in fixed]:
            count = PATCH_COUNTERS[full_name(type(cutters[0]))]
            cutters[0].register_forward_pre_hook(PatchGrid(sizes, count, fixed=True))
        return
