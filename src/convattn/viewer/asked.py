"""What the page asks of networks that run outside it, and which form answers have."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from convattn.viewer.uploads import Limits

__all__ = ["Asked", "Exhibition"]


@dataclass(frozen=True)
class Asked:
    """Rows of attention weights: of every layer, for one query."""

    network: int
    image: int | str  # Number of the image, or "mean"
    query: tuple[float, float] | int  # Row and column in pixels of the image, or the number of a prefix token
    part: str = "both"


@runtime_checkable
class Exhibition(Protocol):
    """Networks and images that a server or a notebook shows. Every answer is a safetensors file.

    What is not there, or not to be had, raises RefusedError.
    """

    limits: Limits

    @property
    def title(self) -> str:
        """Title of the page."""
        ...

    def scene_bytes(self) -> bytes:
        """Returns the scene."""
        ...

    def rows(self, asked: Asked) -> bytes:
        """Returns `{layer}/levels` (heads, keys), `{layer}/scales` (heads) and, if rows are signed, `{layer}/lows`."""
        ...

    def add(self, picture: object, name: str) -> bytes:
        """Adds a picture of pillow; returns what the networks see of it, and its number in the metadata."""
        ...
