"""The partial report: a file of what was measured before an interruption, with which the same call goes on."""

import hashlib
import io
import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from convattn.analysis.measure.run import Run
from convattn.errors import ArgumentError, CheckpointError, must_be
from convattn.files import as_path, write_atomically

_SCHEMA = 2
_EVERY = 30.0
"""Seconds between two writes, at least."""


class PartialFile:
    """The file with which an interrupted analysis goes on: the SHA-256 of all that follows, and the state of the runs.

    A flipped bit in the sums would otherwise be a number in the report.
    """

    def __init__(self, path: str | os.PathLike[str], of: Mapping[str, Any]) -> None:
        """Names the file, and what the analysis is of: model, images and settings, as plain values."""
        self.path, self._of, self._written = as_path(path, "partial"), dict(of), time.monotonic()
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise ArgumentError(must_be("partial", "a file in a folder that exists", str(path)))

    def restore(self, runs: Mapping[str, Run]) -> None:
        """Lets the runs go on where the file was written; nothing happens if there is none.

        A file that is damaged, or of another analysis, raises CheckpointError.
        """
        if not self.path.exists():
            return
        try:
            whole = self.path.read_bytes()
            size = hashlib.sha256().digest_size
            if hashlib.sha256(whole[size:]).digest() != whole[:size]:
                raise ValueError("it is damaged")
            content = torch.load(io.BytesIO(whole[size:]), weights_only=True)
            of = {"version": content["schema"], **content["of"]}
            different = [name for name, mine in {"version": _SCHEMA, **self._of}.items() if of.get(name) != mine]
            if not different:
                for name, state in content["states"].items():
                    runs[name].restore(state)
        except Exception as error:
            raise CheckpointError(f"{self.path} is not a partial report: {type(error).__name__}; delete it") from error
        if different:
            raise self.of_another(*different)

    def of_another(self, *different: str) -> CheckpointError:
        """Makes the error that says in what another analysis, which the file is of, differs."""
        what = ", ".join(different)
        return CheckpointError(f"{self.path} is a partial report of another analysis ({what}); delete it")

    def write(self, runs: Mapping[str, Run], *, now: bool) -> None:
        """Writes the states of all runs; if not `now`, only if the last time was long ago."""
        if not now and time.monotonic() - self._written < _EVERY:
            return
        buffer = io.BytesIO()
        states = {name: run.state() for name, run in runs.items()}
        torch.save({"schema": _SCHEMA, "of": self._of, "states": states}, buffer)
        content = buffer.getvalue()
        write_atomically(self.path, hashlib.sha256(content).digest() + content)
        self._written = time.monotonic()
