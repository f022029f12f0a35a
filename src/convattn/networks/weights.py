"""Reads weights of a network: a state dict, in safetensors or pickled by torch."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from convattn.errors import CheckpointError
from convattn.networks.tensors import require_same


def load_weights(network: nn.Module, file: str | os.PathLike[str]) -> None:
    """Gives a network the weights in a file: a state dict in safetensors, or as `torch.save` writes it.

    In a pickled file it may also be under "state_dict"; it is read by torch's reader of weights alone, which runs no
    code of the file. What cannot be read, or holds other names or shapes than the network, raises CheckpointError.
    """
    path = Path(file)
    found = _read_state_dict(path)
    try:
        require_same(network.state_dict(), found)
    except CheckpointError as error:
        raise CheckpointError(
            f"the weights in {path} do not fit {type(network).__name__}: {error}{_prefix_hint(network, found)}"
        ) from None
    network.load_state_dict(found)


def _prefix_hint(network: nn.Module, found: Mapping[str, Tensor]) -> str:
    """Suggests a prefix to remove, if all names have one, as a wrapper adds it, and fit without it."""
    first = {name.partition(".")[0] for name in found}
    after = {name.partition(".")[2] for name in found}
    if len(first) != 1 or not after & network.state_dict().keys():
        return ""
    return f"; all names in the file begin with '{first.pop()}.', which is to be taken off"


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's own words advise to run what the file holds
        reason = "UnpicklingError: it is no file of torch.save, or holds more than tensors, which is not loaded"
        raise CheckpointError(f"cannot read weights from {path}: {reason}") from None
    except Exception as error:  # noqa: BLE001 - the reader of a damaged file may fail in any way
        reason = str(error).partition("\n")[0] or "it may be empty or cut short"
        raise CheckpointError(f"cannot read weights from {path}: {type(error).__name__}: {reason}") from None
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise CheckpointError(f"cannot read weights from {path}: it holds no state dict")
    return dict(found)
