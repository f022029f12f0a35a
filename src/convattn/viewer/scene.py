"""A scene: images, networks, the attention of their layers, in one safetensors file that the page opens."""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from convattn.errors import ArgumentError, CheckpointError, must_be, must_be_a
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


def _read_header(
    path: Path, metadata: Mapping[str, str], tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """Reads the header and checks the scene, or raises CheckpointError."""
    if _KEY not in metadata:
        raise CheckpointError(f"{path} holds no scene")
    try:
        header = json.loads(
            metadata[_KEY], parse_constant=_finite_number, parse_float=_finite_number
        )
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: its header is no JSON ({error})") from None
    version = header.get("schema") if isinstance(header, dict) else None
    if version != SCHEMA:
        raise CheckpointError(f"{path} must be a scene of version {SCHEMA}, but is of {version!r}")
    digest = header.pop(_DIGEST, None)
    try:
        require_scene(header, tensors)
    except (ArgumentError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if digest is not None and digest != _digest(
        header, tensors
    ):  # files of the first version have none
        raise CheckpointError(f"{path} is damaged: its content is not what was saved")
    return header


def _finite_number(text: str) -> float:
    """Reads a number of a header; raises ValueError for nan and infinity, which JSON does not have."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number of JSON")
    return number


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of a header and of every tensor, whatever their order in the file."""
    parts = [
        json.dumps(header, allow_nan=False),
        *(tensor_digest(name, tensors[name]) for name in sorted(tensors)),
    ]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


_TENSORS = {
    "images.picture": "uint8 any any 3",
    "attention.scores": "float heads any any",
    "attention.axes": "float heads any",
    "attention.heads.centres": "float heads 2",
    "attention.heads.sharpness": "float heads",
    "attention.values": "float heads any any",
    "attention.bias": "float any",
    "attention.queries": "int32 any any",
    "attention.keys": "int32 any any",
    "attention.allowed": "uint8 any any any",
    "timeline.centres": "float any any any 2",
    "timeline.sharpness": "float any any any",
}
"""Dtype and sizes of the tensors that the header names, by the end of their place in it."""

_ROWS = {
    "levels": "uint8 any heads any any",
    "scales": "float any heads any",
    "lows": "float any heads any",
}
"""The same of stored maps, whose names the header does not have."""


def require_scene(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raises ArgumentError unless the tensors of a scene are there, with their sizes and finite numbers.

    The form of the header is not checked beyond its title and its lists of images and networks.
    """
    for name in ("images", "networks"):
        if not isinstance(header.get(name), list) or not header[name]:
            raise ArgumentError(must_be(name, "a list of at least one", header.get(name)))
    if not isinstance(header.get("title"), str):
        raise ArgumentError(must_be_a("title", "text", header.get("title")))
    for place, text, heads in _texts(header, "", None):
        kind = re.sub(r"\[\d+\]", "", place).replace(".position", "")
        form = next((form for end, form in _TENSORS.items() if kind.endswith(end)), None)
        if form or text.startswith("tensors/"):
            _require_tensor(form or "any", text, place, heads, tensors)
    for name, tensor in tensors.items():
        if stored := re.fullmatch(r"maps/(\d+)/(\d+)/.*/(levels|scales|lows)", name):
            heads = header["networks"][int(stored[1])]["layers"][int(stored[2])]["heads"]
            _require_tensor(_ROWS[stored[3]], name, name, heads, tensors)
        # In the timeline, a layer with fewer heads than another is filled up with nan.
        if tensor.is_floating_point() and "/timeline/" not in name and has_wrong_numbers(tensor):
            raise ArgumentError(f"{name} must be finite numbers, but it holds nan or inf")


def _texts(value: Any, place: str, heads: Any) -> Iterator[tuple[str, str, Any]]:
    """Yields each text of the header with its place, and the number of heads of the layer that it lies in."""
    if isinstance(value, dict):
        heads = value["heads"] if isinstance(value.get("heads"), int) else heads
        for name, item in value.items():
            yield from _texts(item, f"{place}.{name}" if place else name, heads)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _texts(item, f"{place}[{at}]", heads)
    elif isinstance(value, str):
        yield place, value, heads


def _require_tensor(
    form: str, name: str, place: str, heads: Any, tensors: Mapping[str, Tensor]
) -> None:
    """Raises ArgumentError unless a tensor is there, of the dtype and the sizes of a form."""
    if name not in tensors:
        raise ArgumentError(must_be(place, "the name of a tensor in the file", name))
    tensor = tensors[name]
    dtype = (
        "float"
        if tensor.dtype in (torch.float16, torch.float32)
        else str(tensor.dtype).removeprefix("torch.")
    )
    found = [dtype, *map(str, tensor.shape)]
    wanted = form.replace("heads", str(heads)).split()
    same = len(found) == len(wanted) and all(
        want in ("any", one) for want, one in zip(wanted, found, strict=True)
    )
    if (form != "any" and not same) or not tensor.numel():
        raise ArgumentError(
            must_be(f"{place} ({name})", f"a tensor of {' '.join(wanted)}", " ".join(found))
        )


def has_wrong_numbers(tensor: Tensor) -> bool:
    """Tells whether floating-point numbers hold nan or +inf; −inf is the score of a key that is never looked at."""
    return bool((tensor.isnan() | tensor.isposinf()).any())


class SceneSizeError(ArgumentError):
    """A scene would be larger than it may be.

    Attributes:
        size: Bytes that it would have at least.
        largest: Bytes that it may have.
    """

    def __init__(self, size: int, largest: int) -> None:
        """Takes both numbers of bytes."""
        self.size, self.largest = size, largest
        needed, allowed = (f"{count / 2**20:.0f} MB" for count in (size, largest))
        super().__init__(
            f"the scene would be {needed} or more, and may be {allowed}: take fewer images, or name the layers to show"
        )

    def __reduce__(self) -> tuple[type, tuple[int, int]]:
        """Lets the error cross from one process to another."""
        return type(self), (self.size, self.largest)


class SceneTensors:
    """The tensors of a scene while it is made; their size is bounded."""

    def __init__(self, largest: int) -> None:
        """Starts with none; `largest` is the size in bytes that they may have together."""
        self.tensors: dict[str, Tensor] = {}
        self._largest = self._left = largest

    def add(self, name: str, tensor: Tensor, *, gaps: bool = False) -> str:
        """Adds a tensor and returns the name that the header gives it.

        Floating-point numbers become float16 if that loses nothing, else float32. nan and inf raise ArgumentError: with
        them a page would show something else than the network computes. `gaps` allows them. A scene that is too large
        raises SceneSizeError.
        """
        compact = _compact(tensor.detach().cpu()).contiguous()
        if compact.is_floating_point() and not gaps and has_wrong_numbers(compact):
            raise ArgumentError(
                f"the network must hold finite numbers, but {name} of its scene has nan or inf"
            )
        self.reserve(compact.nbytes)
        self.tensors[f"tensors/{name}"] = compact
        return f"tensors/{name}"

    def reserve(self, count: int) -> None:
        """Takes bytes from those that are left; if there are too few, it raises SceneSizeError."""
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
