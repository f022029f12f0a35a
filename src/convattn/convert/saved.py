"""Single layers on disk: `model.safetensors` with the weights and `config.json` with what rebuilds the module."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from convattn.__about__ import __version__
from convattn.convert.described import KINDS, describe_layer, rebuild_layer
from convattn.errors import CheckpointError, ConvAttnError, UnsupportedModelError
from convattn.files import new_folder, write_atomically

__all__ = ["load_layer", "save_layer"]

_SCHEMA = 1


def save_layer(layer: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Saves one layer as a folder, whole or not at all.

    Args:
        layer: A relative-attention layer, one padded by the size of the image, or a convolution of torch (not a
            subclass).
        folder: Where; it must be new or empty.

    Returns:
        The folder, holding `model.safetensors` and `config.json`.

    Raises:
        UnsupportedModelError: The layer is of another kind, or would not load: foreign tensors or encoding.
        ArgumentError: The folder exists and is not empty.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     load_layer(save_layer(nn.Conv1d(2, 3, 5), Path(place) / "conv"))
        Conv1d(2, 3, kernel_size=(5,), stride=(1,))
    """
    config = {"convattn": __version__, "schema_version": _SCHEMA, **describe_layer(layer)}
    _require_loadable(layer, config)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in layer.state_dict().items()}
    with new_folder(folder) as temporary:
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        write_atomically(temporary / "config.json", json.dumps(config, indent=2) + "\n")
    return Path(folder)


def load_layer(folder: str | os.PathLike[str]) -> nn.Module:
    """Loads a layer that `save_layer` saved.

    Args:
        folder: The folder.

    Returns:
        An equal layer on the CPU, in training mode as any new module.

    Raises:
        CheckpointError: A file is missing or damaged, or the two do not fit together.
    """
    folder = Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "model.safetensors")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, SafetensorError) as error:
        raise CheckpointError(f"cannot read a layer from {folder}: {error}") from None
    version = config.get("schema_version") if isinstance(config, dict) else None
    if version != _SCHEMA or config.get("kind") not in [*KINDS]:
        raise CheckpointError(f"{folder / 'config.json'} does not describe a layer of schema version {_SCHEMA}")
    try:
        layer = rebuild_layer(config)
        layer.load_state_dict(tensors, assign=True)
    except (ConvAttnError, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the files in {folder} do not fit together: {error}") from None
    return layer


def _require_loadable(layer: nn.Module, config: dict[str, Any]) -> None:
    """Refuses a module whose tensors are not those of a new one with its arguments, or have no values."""
    kind, found = type(layer).__name__, layer.state_dict()
    if any(tensor.is_meta for tensor in found.values()):
        raise UnsupportedModelError(f"cannot save {kind}: its tensors are on the meta device and have no values")
    with torch.device("meta"):
        plain = rebuild_layer(json.loads(json.dumps(config))).state_dict()
    differing = sorted(
        name
        for name in {*found, *plain}
        if name not in found or name not in plain or found[name].shape != plain[name].shape
    )
    if differing:
        raise UnsupportedModelError(
            f"cannot save {kind}: it would not load, because {', '.join(differing)} differ from a plain {kind}'s;"
            " make hooks, as in pruning, permanent first"
        )
