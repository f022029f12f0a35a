"""Spatially reduced keys: PVT and Segformer, and what is built like them."""

from typing import Any

from torch import nn

from convattn.adapters.attention.layout import Layout, global_layout
from convattn.adapters.attention.reduced import cell_centres, key_cells
from convattn.adapters.attention.seen import Read, Seen
from convattn.errors import UnsupportedModelError

_HF = "transformers.models"
_REDUCTIONS = ("sr", "sequence_reduction", "spatial_reduction")


def read_reduced(seen: Seen) -> Layout:
    """Reads keys that a convolution, or a pooling to 7 × 7, makes of the grid that the module is given."""
    rows, cols = _grid(seen)
    prefix = seen.queries - rows * cols
    if prefix not in (0, 1):
        raise UnsupportedModelError(
            f"{seen.queries} queries are not {rows} × {cols} positions, with a class token or not"
        )
    if seen.keys == seen.queries:
        return seen.global_layout((rows, cols), prefix, "the grid that it is given")
    reduction = next((part for name in _REDUCTIONS if (part := getattr(seen.module, name, None)) is not None), None)
    if prefix or reduction is None:
        raise UnsupportedModelError(
            f"{seen.keys} keys for {seen.queries} queries, and nothing that reduces them is known"
        )
    steps = _steps(reduction)
    counts = seen.grid_of(reduction)
    keys = key_cells([cell_centres(*sizes) for sizes in zip((rows, cols), counts, steps, strict=True)])
    source = (
        f"the grid that it is given; each key is a cell of {rows} × {cols} positions cut into {counts[0]} × {counts[1]}"
    )
    return global_layout((rows, cols), keys=keys, key_prefix=0, pattern="reduced keys", source=source)


def _grid(seen: Seen) -> tuple[int, int]:
    """Returns the grid that the module is given: as a pair, or as rows and columns."""
    given: Any = seen.argument(1, "feat_size") or seen.kwargs.get("size")
    if given is None or isinstance(given, int):
        given = (seen.argument(1, "height"), seen.argument(2, "width"))
    return int(given[0]), int(given[1])


def _steps(reduction: nn.Module) -> tuple[int | None, int | None]:
    """Returns the step of a reducing convolution along each axis; None where its input was pooled before."""
    convolution = next(part for part in reduction.modules() if isinstance(part, nn.Conv2d))
    if convolution.kernel_size == (1, 1):
        return None, None
    if convolution.kernel_size != convolution.stride or convolution.padding not in ((0, 0), 0):
        raise UnsupportedModelError("its keys are made of cells that overlap")
    return convolution.stride[0], convolution.stride[1]


REDUCED: dict[str, tuple[str, Read]] = {
    "timm.models.pvt_v2.Attention": ("reduced keys", read_reduced),
    "timm.models.twins.GlobalSubSampleAttn": ("reduced keys", read_reduced),
    f"{_HF}.pvt.modeling_pvt.PvtEfficientSelfAttention": ("reduced keys", read_reduced),
    f"{_HF}.pvt_v2.modeling_pvt_v2.PvtV2SelfAttention": ("reduced keys", read_reduced),
    f"{_HF}.segformer.modeling_segformer.SegformerAttention": ("reduced keys", read_reduced),
}
"""Family and reader by full name of the class."""
