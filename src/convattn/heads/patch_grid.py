"""The grid of patches for which heads were measured: a network refuses images that it cuts into another."""

from dataclasses import dataclass
from typing import Any, final

from torch import nn

from convattn.convert.surgery import full_name
from convattn.errors import ShapeError
from convattn.heads.catalogue import PATCH_COUNTERS
from convattn.heads.families.attention_class import PatchCounter


@final
@dataclass(frozen=True)
class PatchGrid:
    """Forward pre-hook of the module that cuts images into patches: refuses other rows and columns of them.

    An attention layer receives a sequence of tokens, whose number does not tell 2 × 8 from 4 × 4 patches.

    Attributes:
        sizes: Rows and columns on which heads were measured.
        count: Returns rows and columns, given that module and the height and width of an image.
    """

    sizes: tuple[int, ...]
    count: PatchCounter

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Raises ShapeError if an image is cut into other rows and columns."""
        if not arguments:
            return
        height, width = arguments[0].shape[-2:]
        sizes = self.count(module, (int(height), int(width)))
        if sizes != self.sizes:
            raise ShapeError(
                f"images must be cut into {_words(self.sizes)} patches, on which the heads were measured, but these are"
                f" cut into {_words(sizes)}"
            )


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
        fixed = [hook.sizes for hook in hooks if isinstance(hook, PatchGrid)]
        if len(cutters) == 1 and sizes not in fixed:
            count = PATCH_COUNTERS[full_name(type(cutters[0]))]
            cutters[0].register_forward_pre_hook(PatchGrid(sizes, count))
        return
