"""What was measured before an interruption: one file, whole or not there, with which the same call goes on."""

import hashlib
import io
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convattn.errors import CheckpointError
from convattn.files import write_atomically

_SCHEMA = 2
_EVERY = 30.0
"""Seconds between two writes, at least."""


class PartialFile:
    """The file with which an interrupted analysis goes on."""

    def __init__(self, path: str | os.PathLike[str], of: Mapping[str, Any]) -> None:
        """Names the file, and what the analysis is of: model, images and settings, as plain values."""
        self.path, self._of, self._written = Path(path), dict(of), time.monotonic()

    def read(self) -> dict[str, Any]:
        """Returns the states of all runs; none if there is no file.

        A file that is damaged, or of another analysis, raises CheckpointError.
        """
        if not self.path.exists():
            return {}
        try:
            content = torch.load(self.path, weights_only=True)
            schema, of, states = content["schema"], content["of"], content["states"]
        except Exception as error:
            raise CheckpointError(f"{self.path} is not a partial report: {type(error).__name__}; delete it") from error
        different = [name for name in self._of if of.get(name) != self._of[name]] if isinstance(of, dict) else ["all"]
        if schema != _SCHEMA or different:
            what = ", ".join(different) or "version"
            raise CheckpointError(f"{self.path} is a partial report of another analysis ({what}); delete it")
        return states

    def write(self, states: Mapping[str, Any], *, now: bool) -> None:
        """Writes the states of all runs; if not `now`, only if the last time was long ago."""
        if not now and time.monotonic() - self._written < _EVERY:
            return
        buffer = io.BytesIO()
        torch.save({"schema": _SCHEMA, "of": self._of, "states": dict(states)}, buffer)
        write_atomically(self.path, buffer.getvalue())
        self._written = time.monotonic()

    def remove(self) -> None:
        """Deletes the file, if it is there."""
        self.path.unlink(missing_ok=True)


def digest(tensors: Sequence[Tensor]) -> str:
    """Returns a hash of the values of tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def digest_model(model: nn.Module) -> str:
    """Returns a hash of the parameters and buffers of a network."""
    return digest(list(model.state_dict().values()))
