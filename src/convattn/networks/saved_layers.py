"""Single layers as JSON types: what rebuilds a layer, without its weights."""

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from torch import nn

from convattn.convert.calls import Call
from convattn.convert.taps import (
    ATTENTION_LAYERS,
    OPTIONS,
    SUPPORTED_CONVOLUTIONS,
    TransposedConvolution,
)
from convattn.encodings import ENCODINGS, create_encoding, describe_encoding
from convattn.errors import UnknownNameError, UnsupportedModelError
from convattn.layers import Content, NormalisedConv, RelativeAttention

KINDS = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            *ATTENTION_LAYERS,
            NormalisedConv,
            *SUPPORTED_CONVOLUTIONS,
        )
    }
)
"""Classes that can be described, by name."""


def describe_layer(layer: nn.Module) -> dict[str, Any]:
    """Describes a layer by its class ("kind") and its arguments, as JSON types and without its weights.

    A layer or encoding of an unknown class raises UnsupportedModelError.
    """
    kind = type(layer)
    if isinstance(layer, NormalisedConv):
        return {"kind": kind.__name__, "options": layer.options()}
    if kind in SUPPORTED_CONVOLUTIONS:
        options: dict[str, Any] = {name: getattr(layer, name) for name in OPTIONS}
        options |= {"bias": layer.bias is not None, "padding_mode": layer.padding_mode}
        if isinstance(layer, TransposedConvolution):
            options["output_padding"] = layer.output_padding
        return {"kind": kind.__name__, "options": options}
    if not isinstance(layer, RelativeAttention) or kind not in ATTENTION_LAYERS:
        raise UnsupportedModelError(
            f"cannot save {kind.__name__} as a layer: supported are {', '.join(KINDS)}"
        )
    return {
        "kind": kind.__name__,
        "options": layer.options(),
        "encoding": describe_encoding(layer.encoding),
        "content": None if layer.content_terms is None else asdict(layer.content_terms),
    }


def rebuild_layer(description: dict[str, Any]) -> nn.Module:
    """Builds the layer that `describe_layer` described, with new weights on the default device.

    An unknown class raises UnknownNameError, an encoding that is not registered UnsupportedModelError. A damaged
    description raises whatever building from it raises.
    """
    name = description["kind"]
    if name not in KINDS:
        raise UnknownNameError("kind of layer", name, KINDS)
    options = {key: _tuples(value) for key, value in description["options"].items()}
    kind: Any = KINDS[name]
    if not issubclass(kind, RelativeAttention):
        return kind(**options, device=None)  # which a description must not choose
    encoding = description["encoding"]
    if encoding["name"] not in ENCODINGS:
        hint = "if it is your own, call convattn.register_encoding before loading"
        raise UnsupportedModelError(f"its encoding {encoding['name']!r} is not registered: {hint}")
    if description["content"]:
        options["content"] = Content(**description["content"])
    built = create_encoding(
        encoding["name"], options["num_heads"], kind.dims, **encoding["options"]
    )
    return kind(encoding=built, **options, device=None)


def describe_call(call: Call) -> dict[str, Any]:
    """Describes a call of a convolution as a function, as JSON types."""
    return {**asdict(call), "module": call.module.__name__}


def rebuild_call(description: Mapping[str, Any]) -> Call:
    """Builds the call that `describe_call` described."""
    options = {name: _tuples(value) for name, value in description["options"].items()}
    kind: Any = KINDS[description["module"]]
    shape = tuple(description["shape"])
    return Call(**{**description, "module": kind, "shape": shape, "options": options})


def _tuples(value: Any) -> Any:
    """Turns lists into tuples, recursively."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
