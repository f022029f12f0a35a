"""Networks and images in memory: attention maps are computed when they are asked for, and held within a bound."""

import io
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast, final, runtime_checkable

import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor

from convattn.errors import ArgumentError, ConvAttnError, DataError, must_be
from convattn.networks.images import PictureError, decode_picture
from convattn.viewer.build import Exhibit, ReadMaps, Rows, build_scene, encode_rows, read_maps
from convattn.viewer.scene import Scene, readable
from convattn.wording import counted


class RefusedError(DataError):
    """A request that is not carried out; the message is for whoever asked."""

    def __init__(self, status: int, message: str) -> None:
        """Takes the HTTP status and what was wrong."""
        self.status = status
        super().__init__(message)

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        """Lets the error cross from one process to another."""
        return type(self), (self.status, str(self))


FORMATS = ("BMP", "GIF", "JPEG", "PNG", "WEBP")
"""Formats that are read: those that browsers show."""

_STATUS = {"none": 415, "large": 413, "damaged": 400}


@dataclass(frozen=True)
class Limits:
    """Bounds on what is uploaded and held."""

    file_bytes: int = 10 * 2**20  # Of one file
    pixels: int = 24_000_000  # Of one picture, before it is scaled for the network
    pictures: int = 100  # Uploaded pictures that are held, as the network sees them
    uploads: int = 4  # Uploads that are read at a time; others wait
    seconds: float = 30.0  # For the body of one upload
    map_bytes: int = 256 * 2**20  # Attention maps that are held; the image asked for longest ago goes first


def read_picture(data: bytes, limits: Limits, name: str = "") -> Any:
    """Decodes a picture, or raises RefusedError: 415 if it is none, 413 if it is too large, 400 if it is damaged.

    Where the file has a name, the message begins with it.
    """
    try:
        return decode_picture(io.BytesIO(data), formats=FORMATS, pixels=limits.pixels)
    except PictureError as error:
        raise RefusedError(_STATUS[error.reason], f"{name}: {error}" if name else str(error)) from None


Value = TypeVar("Value")


@dataclass
class _Held(Generic[Value]):
    """What is being made, or was made."""

    lock: threading.Lock
    value: Value | None = None
    size: int = 0


class Kept(Generic[Value]):
    """Values by key within a number of bytes; each is made once, however many ask for it at the same time.

    What was asked for longest ago goes first. A value that is larger than the bound alone is returned and not held.
    """

    def __init__(self, limit: int, make: Callable[[Any], Value], size: Callable[[Value], int]) -> None:
        """Takes the bound in bytes, what makes the value of a key, and how large a value is."""
        self._limit, self._make, self._size = limit, make, size
        self._held: OrderedDict[Hashable, _Held[Value]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes that are held."""
        with self._lock:
            return sum(one.size for one in self._held.values())

    def get(self, key: Hashable) -> Value:
        """Returns the value of a key; whoever comes while it is being made waits for it."""
        with self._lock:
            one = self._held.setdefault(key, _Held(threading.Lock()))
            self._held.move_to_end(key)
        with one.lock:
            if one.value is None:
                one.value = self._make(key)
                with self._lock:
                    one.size = self._size(one.value)
                    self._drop()
            return one.value

    def _drop(self) -> None:
        total = sum(one.size for one in self._held.values())
        for key in [key for key, one in self._held.items() if one.size]:
            if total <= self._limit:
                return
            total -= self._held.pop(key).size


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


Prepare = Callable[[Any], Tensor]
"""Turns an RGB picture of pillow into the tensor that a network takes."""

_Maps = dict[tuple[str, str], Rows]
"""Maps of one network on one image: by layer and part."""


@final
class Live:
    """What a server or a notebook shows of networks in memory.

    A network runs once for each image, and never twice at a time. Its maps are held as bytes, up to
    `limits.map_bytes`; after that those of the image that was asked for longest ago go.
    """

    def __init__(
        self,
        exhibits: Exhibit | Sequence[Exhibit],
        *,
        prepare: Sequence[Prepare | None] = (),
        names: Sequence[str] = (),
        labels: Sequence[str] = (),
        title: str = "",
        limits: Limits | None = None,
    ) -> None:
        """Takes what `build_scene` takes, and how each network's pictures are prepared.

        Where that is unknown, the middle of a picture is scaled to the size of the images; if mean and standard
        deviation are unknown as well, pictures are refused.
        """
        self._exhibits = [exhibits] if isinstance(exhibits, Exhibit) else list(exhibits)
        self._scene = build_scene(self._exhibits, names=names, labels=labels, title=title, stored=False)
        if len(prepare) not in (0, len(self._exhibits)):
            raise ArgumentError(must_be("prepare", f"one for each of {len(self._exhibits)} networks", [*prepare]))
        self._prepare = [*prepare] or [None] * len(self._exhibits)
        self.limits = limits or Limits()
        self._images: list[list[Tensor]] = [list(one.images) for one in self._exhibits]
        self._given = len(self._images[0])
        self._maps: Kept[_Maps] = Kept(self.limits.map_bytes, self._read, _size)
        self._adding = threading.Lock()

    @property
    def title(self) -> str:
        """Title of the scene."""
        return self._scene.header["title"]

    @property
    def map_bytes(self) -> int:
        """Bytes of the maps that are held."""
        return self._maps.size

    def scene_bytes(self) -> bytes:
        """Returns the scene as a file, with pictures that were added."""
        with self._adding:
            return self._scene.to_bytes()

    def rows(self, asked: Asked) -> bytes:
        """Returns the rows of a query as a file, or raises RefusedError if there is no such network or image."""
        layers = self._layers(asked)
        wanted = [
            (number, layer, found)
            for number, layer in enumerate(layers)
            if (found := self._find(layer, asked.query)) is not None
        ]
        tensors: dict[str, Tensor] = {}
        if wanted:
            maps = self._maps.get((asked.network, asked.image))
            for number, layer, (group, place) in wanted:
                rows = maps.get((layer["name"], asked.part))
                if rows is not None:
                    tensors |= {f"{number}/{kind}": one for kind, one in _row(rows, group, place).items()}
        return save(tensors)

    def add(self, picture: Any, name: str) -> bytes:
        """Adds a picture, and returns what the first network sees of it, with its number in the metadata."""
        with self._adding:
            count = len(self._images[0])
            if count >= self._given + self.limits.pictures:
                raise RefusedError(507, f"no more than {counted(self.limits.pictures, 'added picture')} can be held")
            made = [self._prepared(number, picture) for number in range(len(self._exhibits))]
            added = replace(self._exhibits[0], images=made[0][None])
            seen, place = added.pictures()[0], f"tensors/pictures/{count}"
            image = {"name": readable(name), "label": None, "picture": place, "note": added.notes()[0]}
            header = {**self._scene.header, "images": [*self._scene.header["images"], image]}
            for images, one in zip(self._images, made, strict=True):
                images.append(one)
            self._scene = Scene(header, {**self._scene.tensors, place: seen})
        return save({"picture": seen}, {"convattn.image": json.dumps({"index": count, "image": image})})

    def _layers(self, asked: Asked) -> list[dict[str, Any]]:
        networks = self._scene.header["networks"]
        if not 0 <= asked.network < len(networks):
            raise RefusedError(404, f"network must be below {len(networks)}, but is {asked.network}")
        count = len(self._images[asked.network])
        if asked.image != "mean" and not (isinstance(asked.image, int) and 0 <= asked.image < count):
            raise RefusedError(404, f"image must be below {count}, but is {asked.image}")
        if isinstance(asked.query, tuple) and not all(math.isfinite(place) for place in asked.query):
            raise RefusedError(400, must_be("query", "two finite numbers", asked.query))
        if asked.part not in ("both", "position", "content"):
            raise RefusedError(400, must_be("part", "both, position or content", asked.part[:40]))
        return networks[asked.network]["layers"]

    def _find(self, layer: Mapping[str, Any], query: tuple[float, float] | int) -> tuple[int, int] | None:
        """Returns the group of a query and its place there; None if the layer has none, or is computed in the page."""
        attention = layer["attention"]
        if attention["kind"] != "maps":
            return None
        if isinstance(query, int) and not 0 <= query < len(layer["prefix"]):
            return None
        index = -1 - query if isinstance(query, int) else _nearest(layer, query)
        found = (self._scene.tensors[attention["queries"]] == index).nonzero()
        return (int(found[0, 0]), int(found[0, 1])) if len(found) else None

    def _read(self, key: Hashable) -> _Maps:
        """Runs a network on an image, or on all that were given, for the mean."""
        number, image = cast(tuple[int, int | str], key)
        images = self._images[number]
        if image != "mean":
            return {name: encode_rows(weights) for name, weights in self._weights(number, images[cast(int, image)])}
        sums: dict[tuple[str, str], Tensor] = {}
        for one in images[: self._given]:
            for name, weights in self._weights(number, one):
                sums[name] = weights + sums.get(name, 0)
        return {name: encode_rows(total / self._given) for name, total in sums.items()}

    def _weights(self, number: int, image: Tensor) -> list[tuple[tuple[str, str], Tensor]]:
        exhibit = self._exhibits[number]
        needed = {
            layer["name"]
            for layer in self._scene.header["networks"][number]["layers"]
            if layer["attention"]["kind"] == "maps"
        }
        found: list[tuple[tuple[str, str], Tensor]] = []

        def keep(read: ReadMaps) -> None:
            if read.name in needed:
                found.extend(((read.name, part), weights.float().cpu()) for part, weights in read.parts.items())

        try:
            with torch.no_grad():
                read_maps(exhibit.network, image[None], keep, layers=exhibit.layers)
        except ConvAttnError as error:
            raise RefusedError(422, f"the network does not take this image: {error}") from error
        return found

    def _prepared(self, number: int, picture: Any) -> Tensor:
        """Returns what a network takes of a picture: of the same shape as its other images, and finite."""
        exhibit, prepare = self._exhibits[number], self._prepare[number]
        if prepare is None:
            return _fitted(exhibit, picture)
        try:
            made = prepare(picture).to(exhibit.images)
        except Exception as error:  # a function from outside may fail in any way
            raise RefusedError(422, f"the picture cannot be prepared ({type(error).__name__}: {error})") from error
        if made.shape != exhibit.images.shape[1:]:
            found, wanted = (list(shape) for shape in (made.shape, exhibit.images.shape[1:]))
            raise RefusedError(422, f"the picture, prepared, has the shape {found}; the other images have {wanted}")
        if not bool(torch.isfinite(made).all()):
            raise RefusedError(422, "the picture, prepared, has numbers that are not finite")
        return made


def _fitted(exhibit: Exhibit, picture: Any) -> Tensor:
    """Scales a picture, whole, and normalises it; a network of one channel sees its lightness."""
    if not exhibit.shows_pictures:
        raise RefusedError(422, "it is not known how pictures are prepared for this network")
    (rows, cols), channels = exhibit.size, exhibit.images.shape[1]
    fitted = picture.resize((cols, rows), Image.Resampling.BICUBIC).convert("L" if channels == 1 else "RGB")
    pixels = torch.frombuffer(bytearray(fitted.tobytes()), dtype=torch.uint8).view(rows, cols, channels).movedim(2, 0)
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (exhibit.mean, exhibit.std))
    return ((pixels / 255 - mean) / std).to(exhibit.images)


def _nearest(layer: Mapping[str, Any], query: tuple[float, float]) -> int:
    """Returns the flat index of the cell that is nearest to a pixel, as the page finds it."""
    place, (rows, cols) = layer["place"], layer["grid"]
    row, col = (
        min(max(math.floor((at - first) / step + 0.5), 0), size - 1)
        for at, first, step, size in zip(query, place["first"], place["step"], (rows, cols), strict=True)
    )
    return row * cols + col


def _row(rows: Rows, group: int, place: int) -> dict[str, Tensor]:
    lows = rows.lows[group, :, place]
    found = {"levels": rows.levels[group, :, place], "scales": rows.scales[group, :, place]}
    if lows.any():
        found["lows"] = lows
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _size(maps: _Maps) -> int:
    return sum(rows.bytes + rows.lows.nbytes for rows in maps.values())
