"""A scene: images, networks, the attention of their layers, in one safetensors file that the page opens."""

import json
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from convattn.errors import ArgumentError

SCHEMA = 1
"""Version of the format."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What the interactive page shows.

    Its file is in the format of safetensors: the header is JSON under "convattn.scene" in its metadata, and names the
    tensors. `docs/reference/formats.md` describes the format.

    Attributes:
        header: Title, images, networks and their layers, as JSON types.
        tensors: Pictures, scores, weights and maps, by the names that the header gives them.
    """

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    def to_bytes(self) -> bytes:
        """Returns the file's content."""
        header = json.dumps(self.header, allow_nan=False)
        return save(self.tensors, {"convattn.scene": header})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Scene":
        """Reads the content of a file that `to_bytes` made."""
        end = 8 + int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8:end])["__metadata__"]
        return cls(json.loads(metadata["convattn.scene"]), load(content))


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
        compact = _compact(tensor.detach().cpu())
        if compact.is_floating_point() and not gaps:
            wrong = compact.isnan() | compact.isposinf()
            if wrong.any():
                raise ArgumentError(
                    f"the network must hold finite numbers, but {name} of its scene has nan or inf"
                )
        self.keep(f"tensors/{name}", compact)
        return f"tensors/{name}"

    def keep(self, name: str, tensor: Tensor) -> None:
        """Keeps a tensor as it is; if there are too few bytes left, it raises SceneSizeError."""
        self.by_name[name] = tensor.contiguous()
        self._size += tensor.nbytes
        if self._size > self._largest:
            raise SceneSizeError(
                f"the scene would be larger than {self._largest / 2**20:.0f} MiB: take fewer images, or name the layers"
                " to show"
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
