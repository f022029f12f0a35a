"""Layers as JSON: the class and arguments of a layer, and a new layer from these."""

from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from torch import nn

from convattn.convert.classes import ATTENTION_LAYERS, SUPPORTED_CONVOLUTIONS, TransposedConvolution
from convattn.convert.layer.same_padding import SamePaddedAttention
from convattn.encodings import ENCODINGS, create_encoding, describe_encoding
from convattn.errors import UnknownNameError, UnsupportedModelError
from convattn.layers import Content, RelativeAttention

__all__ = ["KINDS", "describe_layer", "rebuild_layer"]

_ATTENTION = {kind.__name__: kind for kind in ATTENTION_LAYERS}
_CONVOLUTIONS = {kind.__name__: kind for kind in SUPPORTED_CONVOLUTIONS}
_CONVOLUTION_OPTIONS = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")

KINDS = MappingProxyType({**_ATTENTION, SamePaddedAttention.__name__: SamePaddedAttention, **_CONVOLUTIONS})
"""Classes that can be described, by name."""


def describe_layer(layer: nn.Module) -> dict[str, Any]:
    """Describes a layer by its class ("kind") and its arguments, as JSON types and without its weights.

    A layer or encoding of an unknown class raises UnsupportedModelError.

    Example:
        >>> describe_layer(nn.Conv1d(2, 3, 5))["options"]["kernel_size"]
        (5,)
    """
    kind = type(layer)
    if isinstance(layer, SamePaddedAttention):
        return {"kind": kind.__name__, "attention": describe_layer(layer.attention)}
    if kind in SUPPORTED_CONVOLUTIONS:
        options: dict[str, Any] = {name: getattr(layer, name) for name in _CONVOLUTION_OPTIONS}
        options |= {"bias": layer.bias is not None, "padding_mode": layer.padding_mode}
        if isinstance(layer, TransposedConvolution):
            options["output_padding"] = layer.output_padding
        return {"kind": kind.__name__, "options": options}
    if not isinstance(layer, RelativeAttention) or kind not in _ATTENTION.values():
        raise UnsupportedModelError(f"cannot save {kind.__name__} as a layer: supported are {', '.join(KINDS)}")
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
    if name == SamePaddedAttention.__name__:
        attention = rebuild_layer(description["attention"])
        return SamePaddedAttention(attention)  # type: ignore[arg-type]
    options = {key: _tuples(value) for key, value in description["options"].items()}
    if name in _CONVOLUTIONS:
        return _CONVOLUTIONS[name](**options)
    kind, encoding = _ATTENTION[name], description["encoding"]
    if encoding["name"] not in ENCODINGS:
        raise UnsupportedModelError(
            f"its encoding {encoding['name']!r} is not registered: if it is your own, call"
            " convattn.register_encoding before loading"
        )
    if description["content"]:
        options["content"] = Content(**description["content"])
    built = create_encoding(encoding["name"], options["num_heads"], kind.dims, **encoding["options"])
    return kind(encoding=built, **options)


def _tuples(value: Any) -> Any:
    """Turns lists into tuples, recursively."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
