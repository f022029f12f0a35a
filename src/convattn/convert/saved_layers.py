"""Single layers as JSON, and on disk: `config.json` describes a layer, `model.safetensors` holds its weights."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from convattn.__about__ import __version__
from convattn.convert.certificate import Certificate
from convattn.convert.surgery import first_change
from convattn.convert.taps import (
    ATTENTION_LAYERS,
    OPTIONS,
    SUPPORTED_CONVOLUTIONS,
    TransposedConvolution,
)
from convattn.encodings import ENCODINGS, create_encoding, describe_encoding
from convattn.errors import (
    ArgumentError,
    CheckpointError,
    UnknownNameError,
    UnsupportedModelError,
    must_be,
    must_be_a,
    without_trace,
)
from convattn.files import as_path, new_folder
from convattn.layers import Content, NormalisedConv, RelativeAttention
from convattn.sealed import CONFIG, may_replace, network_digest, read_sealed, write_sealed

_SCHEMA = 1

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


def save_layer(
    layer: nn.Module,
    folder: str | os.PathLike[str],
    *,
    certificate: Certificate | None = None,
    overwrite: bool = False,
) -> Path:
    """Saves one layer as a folder, completely or not at all, with digests by which loading detects changes.

    Args:
        layer: A relative-attention layer, a `NormalisedConv`, or a convolution of torch (not a subclass).
        folder: Where to save; it must be new or empty, unless `overwrite`.
        certificate: The certificate that the conversion returned.
        overwrite: Whether to replace a saved layer or network that is there; no other folder is replaced.

    Returns:
        The folder, with `model.safetensors`, `config.json` and, if given, `certificate.json`.

    Raises:
        UnsupportedModelError: The layer is of another class, or could not be loaded again because of its encoding, its
            tensors, or NaN in them.
        ArgumentError: The layer or the certificate has another type, the certificate is of another layer, or the folder
            exists and is not empty.
        WriteError: The folder cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     load_layer(save_layer(nn.Conv1d(2, 3, 5), Path(place) / "conv"))
        Conv1d(2, 3, kernel_size=(5,), stride=(1,))
    """
    if not isinstance(layer, nn.Module):
        raise ArgumentError(must_be_a("layer", "an nn.Module", layer))
    if certificate is not None and not isinstance(certificate, Certificate):
        raise ArgumentError(must_be("certificate", "what the conversion returned", certificate))
    if certificate is not None and certificate.weights != network_digest(layer):
        raise ArgumentError(
            "certificate must be that of this layer as it is now, but its weights or its arguments were changed"
        )
    reason = first_change(layer, computed=lambda _: False)
    if reason is not None:
        raise UnsupportedModelError(f"cannot save {type(layer).__name__}: {reason}")
    config = {"convattn": __version__, "schema_version": _SCHEMA, **describe_layer(layer)}
    _require_loadable(layer, config)
    with new_folder(folder, replace=may_replace(folder, overwrite=overwrite)) as temporary:
        try:
            write_sealed(temporary, config, layer.state_dict(), certificate)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"cannot save {type(layer).__name__}: {error}") from None
    return Path(folder)


def load_layer(folder: str | os.PathLike[str], *, verify: bool = True) -> nn.Module:
    """Loads a layer that `save_layer` saved.

    Args:
        folder: The folder.
        verify: Whether to raise if the files were changed since they were saved.

    Returns:
        An equal layer on the CPU, in training mode like any new module.

    Raises:
        CheckpointError: A file is missing, damaged or changed, or the files do not fit together.

    Warns:
        CertificateWarning: The saved certificate says that the conversion failed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     load_layer(save_layer(nn.Conv1d(2, 3, 5), Path(place) / "conv"))
        Conv1d(2, 3, kernel_size=(5,), stride=(1,))
    """
    config, tensors = read_sealed(folder, verify=verify)
    if config.get("schema_version") != _SCHEMA or config.get("kind") not in [*KINDS]:
        raise CheckpointError(
            f"{as_path(folder) / CONFIG} does not describe a layer of schema version {_SCHEMA}"
        )
    try:
        with torch.device(
            "meta"
        ):  # where sizes that do not fit the tensors take neither time nor memory
            layer = rebuild_layer(config)
        layer.load_state_dict(tensors, assign=True)
    except Exception as error:  # noqa: BLE001 - what was edited may fail in any way
        raise CheckpointError(
            f"the files in {folder} do not fit together: {without_trace(error)}"
        ) from None
    return layer


def _require_loadable(layer: nn.Module, config: dict[str, Any]) -> None:
    """Raises if a module's tensors have no values or differ in name or shape from those of a new module."""
    kind = type(layer).__name__
    own = layer.state_dict()
    if any(tensor.is_meta for tensor in own.values()):
        raise UnsupportedModelError(
            f"cannot save {kind}: its tensors are on the meta device and have no values"
        )
    with torch.device("meta"):
        plain = rebuild_layer(json.loads(json.dumps(config))).state_dict()
    shapes = {(name, x.shape) for name, x in own.items()}
    expected = {(name, x.shape) for name, x in plain.items()}
    differing = sorted({name for name, _ in shapes ^ expected})
    if differing:
        raise UnsupportedModelError(
            f"cannot save {kind}: it could not be loaded, because {', '.join(differing)} differ from those of a plain"
            f" {kind}; make pruning and other hooks permanent first"
        )


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


def _tuples(value: Any) -> Any:
    """Turns lists into tuples, recursively."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
