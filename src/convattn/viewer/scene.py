"""A scene: images, networks, the attention of their layers, in one safetensors file that the page opens."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from convattn.errors import ArgumentError, CheckpointError
from convattn.files import as_path, write_atomically
from convattn.sealed import tensor_digest

SCHEMA = 1
"""Version of the format."""

_KEY, _DIGEST = "convattn.scene", "sha256"


@dataclass(frozen=True, eq=False)
class Scene:
    """What the interactive page shows.

    Saved, it is one safetensors file: the header is JSON under "convattn.scene" in its metadata, and names the tensors.
    `docs/reference/formats.md` describes the format.

    Attributes:
        header: Title, images, networks and their layers, as JSON types.
        tensors: Pictures, scores, weights and maps, by the names that the header gives them.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
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
        # The digest lies in the header: two entries of metadata would come in either order.
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
            CheckpointError: The file is missing or damaged, holds no scene, or one of another version.
        """
        path = as_path(path, "path")
        try:
            with safe_open(path, "pt") as file:
                text = (file.metadata() or {}).get(_KEY)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read a scene from {path}: {error}") from None
        if text is None:
            raise CheckpointError(f"{path} holds no scene")
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is damaged: its header is no JSON ({error})") from None
        version = header.get("schema") if isinstance(header, dict) else None
        if version != SCHEMA:
            raise CheckpointError(
                f"{path} must be a scene of version {SCHEMA}, but is of {version!r}"
            )
        digest = header.pop(_DIGEST, None)
        if digest != _digest(header, tensors):
            raise CheckpointError(f"{path} is damaged: its content is not what was saved")
        return cls(header, tensors)


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of a header and of every tensor, whatever their order in the file."""
    digest = hashlib.sha256(json.dumps(header).encode())
    for name in sorted(tensors):
        digest.update(tensor_digest(name, tensors[name]).encode())
    return digest.hexdigest()


class SceneSizeError(ArgumentError):
    """A scene would be larger than it may be; the message says both sizes."""


class SceneTensors:
    """The tensors of a scene while it is made; their size is bounded."""

    def __init__(self, largest: int) -> None:
        """Starts with none; `largest` is the size in bytes that they may have together."""
        self.by_name: dict[str, Tensor] = {}
        self._largest, self._size = largest, 0

    def add(self, name: str, tensor: Tensor, *, gaps: bool = False) -> str:
        """Adds a tensor and returns the name that the header gives it.

        Floating-point numbers become float16 if that loses nothing, else float32. nan and inf raise ArgumentError: with
        them a page would show something else than the network computes; −inf is the score of a key that is never looked
        at. `gaps` allows them. A scene that is too large raises SceneSizeError.
        """
        compact = _compact(tensor.detach().cpu()).contiguous()
        if compact.is_floating_point() and not gaps:
            wrong = compact.isnan() | compact.isposinf()
            if bool(wrong.any()):
                raise ArgumentError(
                    f"the network must hold finite numbers, but {name} of its scene has nan or inf"
                )
        self.reserve(compact.nbytes)
        self.by_name[f"tensors/{name}"] = compact
        return f"tensors/{name}"

    def reserve(self, count: int) -> None:
        """Takes bytes from those that are left; if there are too few, it raises SceneSizeError."""
        self._size += count
        if self._size > self._largest:
            needed = f"{self._size / 2**20:.0f} MB"
            allowed = f"{self._largest / 2**20:.0f} MB"
            raise SceneSizeError(
                f"the scene would be {needed} or more, and may be {allowed}: take fewer images, or name the layers to"
                " show"
            )


def _compact(tensor: Tensor) -> Tensor:
    """Returns a tensor of its own memory, as narrow as it can be without loss."""
    if not tensor.is_floating_point():
        return tensor.clone()
    wide = tensor.float()
    narrow = wide.half()
    if torch.equal(narrow.float(), wide):
        return narrow
    return wide.clone()
