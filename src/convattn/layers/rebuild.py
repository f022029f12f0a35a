"""What rebuilds a layer: its arguments, as JSON types and for printing."""

from typing import TYPE_CHECKING, Any

from convattn.grid import Geometry

if TYPE_CHECKING:
    from convattn.layers.relative import RelativeAttention


def layer_options(layer: "RelativeAttention") -> dict[str, Any]:
    """Returns the arguments that rebuild a layer, except encoding and content, as JSON types."""
    geometry = layer.geometry
    return {
        "in_channels": layer.in_channels,
        "out_channels": layer.out_channels,
        "num_heads": layer.num_heads,
        "head_width": layer.head_width,
        "kernel_size": list(geometry.kernel_size),
        "stride": list(geometry.stride),
        "padding": [list(pair) for pair in geometry.padding],
        "padding_mode": geometry.padding_mode,
        "dilation": list(geometry.dilation),
        "input_dilation": list(geometry.input_dilation),
        "groups": layer.groups,
        "bias": layer.bias is not None,
        "dropout": layer.dropout,
        "impl": layer.impl,
        "kernel_values": layer.values.kernel_size is not None,
        **({} if layer.gate_kind is None else {"gate": layer.gate_kind}),
    }


def printed_options(layer: "RelativeAttention") -> str:
    """Returns a layer's arguments on one line, without those at their defaults."""
    plain = {"head_width": None, "groups": 1, "bias": True, "dropout": 0.0, "impl": "auto", "gate": "sigmoid"}
    plain |= vars(Geometry.parse(layer.dims))
    given = {**layer_options(layer), **vars(layer.geometry)}
    shown = {name: value for name, value in given.items() if name in plain and value != plain[name]}
    sizes = [str(layer.in_channels), str(layer.out_channels), f"num_heads={layer.num_heads}"]
    return ", ".join(sizes + [f"{name}={value!r}" for name, value in shown.items()])
