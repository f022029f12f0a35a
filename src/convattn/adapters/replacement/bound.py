"""Networks whose heads were replaced are bound to the grid of patches on which these were measured."""

from collections.abc import Callable
from typing import Any, final

from torch import nn

from convattn.adapters.timm import rows_and_cols_of_timm
from convattn.adapters.transformers import rows_and_cols_of_transformers
from convattn.convert.classes import full_name
from convattn.errors import ShapeError


def _rows_and_cols_of_torchvision(network: nn.Module, image: tuple[int, int]) -> tuple[int, int]:
    rows, cols = (size // int(network.patch_size) for size in image)  # type: ignore[call-overload, arg-type]
    return rows, cols


_CUTS: dict[str, Callable[[nn.Module, tuple[int, int]], tuple[int, int]]] = {
    "timm.layers.patch_embed.PatchEmbed": rows_and_cols_of_timm,
    "transformers.models.vit.modeling_vit.ViTPatchEmbeddings": rows_and_cols_of_transformers,
    "torchvision.models.vision_transformer.VisionTransformer": _rows_and_cols_of_torchvision,
}
"""Modules that are given an image and cut it into patches, by full name, with what tells rows and columns."""


@final
class MeasuredGrid:
    """Refuses images that are not cut into the rows and columns of the report, as a forward pre-hook.

    The tokens do not tell: 4 × 4 patches are as many as 2 × 8, but other ones lie beside each other.

    Attributes:
        sizes: Rows and columns of the report.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        """Takes the grid of a layer's report."""
        self.sizes = sizes

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Reads the grid of an image, given to a module of `_CUTS`; another one than measured raises ShapeError."""
        if not arguments:
            return
        height, width = arguments[0].shape[-2:]
        found = _CUTS[full_name(type(module))](module, (int(height), int(width)))
        if found != self.sizes:
            grid, other = (" x ".join(map(str, sizes)) for sizes in (self.sizes, found))
            raise ShapeError(
                f"images must be cut into {grid} patches, on which the heads were measured, but these are cut into"
                f" {other}"
            )


def bind_to_grid(network: nn.Module, layer: str, sizes: tuple[int, ...]) -> None:
    """Lets the module that cuts the images of a layer refuse other grids, if one of `_CUTS` is found around the layer.

    It is found if the innermost module around the layer that holds any of `_CUTS` holds only one.
    """
    names = layer.split(".")
    for depth in reversed(range(len(names))):
        parts = network.get_submodule(".".join(names[:depth])).modules()
        found = [part for part in parts if full_name(type(part)) in _CUTS]
        if found:
            hooks = found[0]._forward_pre_hooks.values()
            known = any(isinstance(hook, MeasuredGrid) and hook.sizes == sizes for hook in hooks)
            if len(found) == 1 and not known:
                found[0].register_forward_pre_hook(MeasuredGrid(sizes))
            return
