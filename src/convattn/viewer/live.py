"""Networks and images in memory: attention maps are computed when they are asked for, and held within a bound."""

import json
import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, final

import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor

from convattn.errors import ArgumentError, ConvAttnError, must_be
from convattn.records.words import counted
from convattn.viewer.asked import Asked
from convattn.viewer.build import build_scene
from convattn.viewer.exhibit import Exhibit
from convattn.viewer.kept import Kept
from convattn.viewer.maps import ReadMaps, Rows, encode_rows, read_maps
from convattn.viewer.refused import RefusedError
from convattn.viewer.scene import Scene
from convattn.viewer.texts import readable
from convattn.viewer.uploads import Limits

__all__ = ["Live"]

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
