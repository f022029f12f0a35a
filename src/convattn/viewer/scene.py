"""A scene: images, networks, the attention of their layers, in one safetensors file that the page opens."""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from convattn.errors import ArgumentError, CheckpointError
from convattn.files import as_path, write_atomically
from convattn.sealed import tensor_digest
from convattn.viewer.checked import require_scene
from convattn.viewer.named import wrong_numbers

SCHEMA = 1
"""Version of the format."""

_KEY, _DIGEST = "convattn.scene", "sha256"
_LISTS = ("images", "networks")


@dataclass(frozen=True, eq=False)
class Scene:
    """What the interactive page shows.

    Saved, it is one safetensors file: the header is JSON under "convattn.scene" in its metadata, and names the tensors.
    `docs/viewer.md` describes the format.

    Attributes:
        header: Title, images, networks and their layers, as JSON types.
        tensors: Pictures, scores, weights and maps, by the names that the header gives them.

    Example:
        >>> import tempfile
        >>> from convattn import AttentionNet
        >>> from convattn.viewer import Exhibit, build_scene
        >>> network = AttentionNet(width=8, depth=1, heads=4, ffn=8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "scene.safetensors")
        ...     build_scene(Exhibit(network, torch.zeros(1, 3, 8, 8)), title="one network").save(file)
        ...     Scene.load(file).header["title"]
        'one network'
    """

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    def to_bytes(self) -> bytes:
        """Returns the file's content."""
        # Inside the header: two entries of metadata would come in either order.
        header = {**self.header, _DIGEST: _digest(self.header, self.tensors)}
        return save(self.tensors, {_KEY: json.dumps(header, allow_nan=False)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the scene; the file is there whole or not at all.

        Args:
            path: File to write; its folder must exist.

        Raises:
            WriteError: It cannot be written.
            ArgumentError: There is no such folder.
        """
        write_atomically(as_path(path, "path"), self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Scene":
        """Loads a scene.

        Args:
            path: A file that `save` wrote.

        Returns:
            The scene.

        Raises:
            CheckpointError: The file is missing or damaged, holds no scene, or one of another version. The message says
                where.
        """
        path = as_path(path, "path")
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read a scene from {path}: {error}") from None
        return cls(_read_header(path, metadata, tensors), tensors)

    @property
    def bytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def _read_header(path: Path, metadata: Mapping[str, str], tensors: dict[str, Tensor]) -> dict[str, Any]:
    told = metadata.get(_KEY)
    if told is None:
        raise CheckpointError(f"{path} holds no scene")
    try:
        header = json.loads(told, parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: its header is no JSON ({error})") from None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        found = header.get("schema") if isinstance(header, dict) else None
        raise CheckpointError(f"{path} must be a scene of version {SCHEMA}, but is of {found!r}")
    if not all(isinstance(header.get(name), list) for name in _LISTS):
        raise CheckpointError(f"{path} is damaged: its header has no {' and '.join(_LISTS)}")
    said = header.pop(_DIGEST, None)
    try:
        missing = sorted(name for name in _names(header) if name not in tensors)
        if missing:
            raise CheckpointError(f"{path} is damaged: it does not hold {', '.join(missing[:3])}")
        require_scene(header, tensors)
    except (ArgumentError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    # The form comes first: its messages say where.
    if said is not None and said != _digest(header, tensors):
        raise CheckpointError(f"{path} is damaged: what it holds is not what was saved")
    return header


def _number(text: str) -> float:
    """Reads a number of a header; nan and infinity, which Python's JSON has, and what is as large, raise ValueError."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number of JSON")
    return number


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of a header and of every tensor, whatever their order in the file."""
    digest = hashlib.sha256(json.dumps(header, allow_nan=False).encode())
    for name in sorted(tensors):
        digest.update(tensor_digest(name, tensors[name]).encode())
    return digest.hexdigest()


def _names(value: Any) -> Iterator[str]:
    """Yields the names of tensors in a header: they are the texts that begin with "tensors/"."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _names(item)
    elif isinstance(value, list):
        for item in value:
            yield from _names(item)
    elif isinstance(value, str) and value.startswith("tensors/"):
        yield value


class SceneSizeError(ArgumentError):
    """A scene would be larger than it may be.

    Attributes:
        size: Bytes that it would have at least.
        largest: Bytes that it may have.
    """

    def __init__(self, size: int, largest: int) -> None:
        """Takes both numbers of bytes."""
        self.size, self.largest = size, largest
        super().__init__(
            f"the scene would be {_megabytes(size)} or more, and may be {_megabytes(largest)}: take fewer images, or"
            " name the layers to show"
        )

    def __reduce__(self) -> tuple[type, tuple[int, int]]:
        """Lets the error cross from one process to another."""
        return type(self), (self.size, self.largest)


def _megabytes(count: int) -> str:
    return f"{count / 2**20:.0f} MB"


class Collected:
    """Tensors of a scene while it is made; their size is bounded."""

    def __init__(self, largest: int) -> None:
        """Starts with none; `largest` is the size in bytes that they may have together."""
        self.tensors: dict[str, Tensor] = {}
        self._largest = self._left = largest

    def add(self, name: str, tensor: Tensor, *, gaps: bool = False) -> str:
        """Adds a tensor and returns the name that the header gives it; a scene that is too large raises SceneSizeError.

        `gaps` allows nan.

        Floating-point numbers become float16 if that changes none, else float32. nan and inf raise ArgumentError: with
        them a page would show something else than the network computes.
        """
        kept = _compact(tensor.detach().cpu()).contiguous()
        if kept.is_floating_point() and not gaps and wrong_numbers(kept):
            raise ArgumentError(f"the network must hold finite numbers, but {name} of its scene has nan or inf")
        name = f"tensors/{name}"
        self.reserve(kept.nbytes)
        self.tensors[name] = kept
        return name

    def reserve(self, count: int) -> None:
        """Takes bytes away from those that are left; if there are too few, it raises SceneSizeError."""
        self._left -= count
        if self._left < 0:
            raise SceneSizeError(self._largest - self._left, self._largest)


def _compact(tensor: Tensor) -> Tensor:
    """Returns a tensor of its own memory, as narrow as it can be without loss."""
    if not tensor.is_floating_point():
        return tensor.clone()
    wide = tensor.float()
    narrow = wide.half()
    return narrow if torch.equal(narrow.float(), wide) else wide.clone()
