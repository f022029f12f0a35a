"""Attention that depends on displacements alone: its scores, and what the page needs to compute the layer."""

from typing import Any

import torch

from convattn.encodings import AxisAdditiveEncoding, Encoding, GeneralizedQuadratic, Quadratic, Shift
from convattn.encodings.registry import ENCODINGS
from convattn.grid import Axis
from convattn.layers import RelativeAttention
from convattn.viewer.scene import Collected


@torch.no_grad()
def describe_position(
    layer: RelativeAttention, axes: tuple[Axis, ...], name: str, collected: Collected, *, values: bool = True
) -> dict[str, Any]:
    """Describes the attention of a layer's displacements; `values` tells whether the page computes its output, too.

    The scores are those of every displacement on the grid, in float32, from the lowest to the highest along each axis;
    of an encoding that adds up over the axes, those of each axis, whose sum the page takes.
    """
    encoding, geometry = layer.encoding, layer.geometry
    device, add = next(layer.values.parameters()).device, collected.add
    additive = isinstance(encoding, AxisAdditiveEncoding)
    tables = encoding.axis_tables(axes, device=device) if additive else None
    described: dict[str, Any] = {
        "kind": "position",
        "scores": add(f"{name}/scores", encoding.table(axes, device=device)) if tables is None else None,
        "axes": None if tables is None else [add(f"{name}/axes/{n}", table) for n, table in enumerate(tables)],
        "queries": {
            "first": [axis.queries.start for axis in axes],
            "stride": [axis.queries.step for axis in axes],
        },
        "heads": _describe_heads(encoding, name, collected),
        "values": None,
        "bias": None,
        "padding": {
            "pairs": [list(pair) for pair in geometry.padding],
            "mode": geometry.padding_mode,
            "spread": list(geometry.input_dilation),
        },
        "groups": layer.groups,
    }
    if values:
        described["values"] = add(f"{name}/values", layer.values.maps())
        described["bias"] = None if layer.bias is None else add(f"{name}/bias", layer.bias)
    return described


def _describe_heads(encoding: Encoding, name: str, collected: Collected) -> dict[str, Any]:
    centres = sharpness = None
    if isinstance(encoding, Quadratic | GeneralizedQuadratic):
        centres = encoding.centres
    elif isinstance(encoding, Shift):
        centres = torch.tensor(encoding.displacements, dtype=torch.float32)
    if isinstance(encoding, Quadratic):
        sharpness = encoding.root_sharpness**2 / 2
    return {
        "encoding": encoding_name(encoding),
        "centres": None if centres is None else collected.add(f"{name}/centres", centres),
        "sharpness": None if sharpness is None else collected.add(f"{name}/sharpness", sharpness),
    }


def encoding_name(encoding: Encoding) -> str:
    """Returns the name by which an encoding is built, or of its class if it has none."""
    kind = type(encoding)
    return next((name for name, known in ENCODINGS.items() if known is kind), kind.__name__)
