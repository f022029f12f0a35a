"""Single layers as JSON types: what rebuilds a layer, without its weights."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from convattn.convert.calls import AttendedCalls, Call
from convattn.convert.taps import (
    ATTENTION_LAYERS,
    OPTIONS,
    SUPPORTED_CONVOLUTIONS,
    TransposedConvolution,
)
from convattn.encodings import ENCODINGS, create_encoding, describe_encoding
from convattn.encodings.registry import OWN_ENCODINGS
from convattn.errors import UnsupportedModelError, require_name
from convattn.layers import Content, NormalisedConv, RelativeAttention

_CLASSES = (
    *ATTENTION_LAYERS,
    *SUPPORTED_CONVOLUTIONS,
    NormalisedConv,
    AttendedCalls,
    nn.Identity,
)
KINDS = MappingProxyType({kind.__name__: kind for kind in _CLASSES})
"""Classes that can be described, by name."""


def describe_layer(layer: nn.Module) -> dict[str, Any]:
    """Describes a layer by its class ("kind") and its arguments, as JSON types and without its weights.

    A layer or encoding of an unknown class raises UnsupportedModelError.
    """
    kind = type(layer)
    if kind not in _CLASSES:
        raise UnsupportedModelError(
            f"cannot save {kind.__name__} as a layer: supported are {', '.join(KINDS)}"
        )
    options: dict[str, Any] = {}
    described = {"kind": kind.__name__, "options": options}
    if isinstance(layer, AttendedCalls):
        described["layers"] = list(map(describe_layer, layer.layers))
        described["calls"] = [
            {**asdict(call), "module": call.module.__name__} for call in layer.calls
        ]
    elif isinstance(layer, RelativeAttention | NormalisedConv):
        options |= layer.options()
    elif kind in SUPPORTED_CONVOLUTIONS:
        options |= {name: getattr(layer, name) for name in (*OPTIONS, "padding_mode")}
        options["bias"] = layer.bias is not None
    if isinstance(layer, TransposedConvolution):
        options["output_padding"] = layer.output_padding
    if isinstance(layer, RelativeAttention):
        described["encoding"] = describe_encoding(layer.encoding)
        content = layer.content_terms
        described["content"] = None if content is None else asdict(content)
    return described


def rebuild_layer(description: Mapping[str, Any], place: Any = None) -> nn.Module:
    """Builds the layer that `describe_layer` described, with new weights on the default device.

    `place` is the module whose calls `AttendedCalls` attend to. An unknown class raises UnknownNameError, an encoding
    that is not registered UnsupportedModelError. A damaged description raises whatever building from it raises.
    """
    name = description["kind"]
    require_name("kind of layer", name, KINDS)
    kind: Any = KINDS[name]
    if kind is AttendedCalls:
        layers = list(map(rebuild_layer, description["layers"]))
        return kind(place, layers, list(map(_rebuild_call, description["calls"])))
    options = {key: _tuples(value) for key, value in description["options"].items()}
    if not issubclass(kind, RelativeAttention):
        return kind(**options, device=None)  # which a description must not choose
    encoding = description["encoding"]
    if encoding["name"] not in ENCODINGS:
        hint = "if it is your own, call convattn.register_encoding before loading"
        raise UnsupportedModelError(f"its encoding {encoding['name']!r} is not registered: {hint}")
    if description["content"]:
        options["content"] = Content(**description["content"])
    place = nullcontext()
    if encoding["name"] not in OWN_ENCODINGS:
        place = torch.device("cpu")  # it may compute numbers that are in no file, or look at them
    with place:
        built = create_encoding(
            encoding["name"], options["num_heads"], kind.dims, **encoding["options"]
        )
    return kind(encoding=built, **options, device=None)


def _rebuild_call(description: Mapping[str, Any]) -> Call:
    options = {name: _tuples(value) for name, value in description["options"].items()}
    kind: Any = KINDS[description["module"]]
    shape = tuple(description["shape"])
    return Call(**{**description, "module": kind, "shape": shape, "options": options})


def _tuples(value: Any) -> Any:
    """Turns lists into tuples, recursively."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
