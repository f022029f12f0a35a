"""Networks and images in memory: attention maps are computed when they are asked for, and held within a bound."""

import contextlib
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from convattn.errors import ConvAttnError, DataError, must_be
from convattn.viewer.build import Exhibit, build_scene
from convattn.viewer.image_maps import LayerCall, Rows, encode_rows, read_layers

MAP_BYTES = 256 * 2**20
"""Bytes of attention maps that are held; the image used longest ago goes first."""


class RefusedError(DataError):
    """A request that is not carried out; the message is for the reader of the page."""

    def __init__(self, status: int, message: str) -> None:
        """Takes the HTTP status and what was wrong."""
        self.status = status
        super().__init__(message)

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        """Lets the error cross from one process to another."""
        return type(self), (self.status, str(self))


@dataclass(frozen=True)
class RowsRequest:
    """A request for rows of attention weights: of every layer, for one query."""

    network: int
    image: int | str  # Number of the image, or "mean"
    query: tuple[float, float] | int  # Row and column in pixels of the image, or the number of a prefix token
    part: str = "both"

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "RowsRequest":
        """Reads the request of a page, as numbers or as text; raises RefusedError of 400 if it makes no sense."""
        network = _whole(given, "network")
        query = _whole(given, "prefix") if "prefix" in given else (_number(given, "row"), _number(given, "col"))
        image = "mean" if given.get("image") == "mean" else _whole(given, "image")
        part = given.get("part", "both")
        if part not in ("both", "position", "content"):
            raise RefusedError(400, must_be("part", "both, position or content", str(part)[:40]))
        return cls(network, image, query, part)


def _number(given: Mapping[str, Any], name: str) -> float:
    if name not in given:
        raise RefusedError(400, f"{name} is missing")
    with contextlib.suppress(ValueError, TypeError):
        if math.isfinite(found := float(given[name])):
            return found
    raise RefusedError(400, must_be(name, "a number", str(given[name])[:40]))


def _whole(given: Mapping[str, Any], name: str) -> int:
    found = _number(given, name)
    if not (found.is_integer() and found >= 0):
        raise RefusedError(400, must_be(name, "a whole number from 0", str(given[name])[:40]))
    return int(found)


_Maps = dict[tuple[str, str], Rows]
"""Maps of one network on one image: by layer and part."""


class Live:
    """What a server shows of networks in memory. Every answer is a safetensors file.

    A network runs once for each image, and one at a time; concurrent callers wait. Its maps are held as bytes, up to
    `MAP_BYTES`; beyond that those of the image used longest ago are dropped.
    """

    def __init__(
        self,
        exhibits: Exhibit | Sequence[Exhibit],
        *,
        names: Sequence[str] = (),
        labels: Sequence[str] = (),
        title: str = "",
    ) -> None:
        """Takes what `build_scene` takes."""
        self._exhibits = [exhibits] if isinstance(exhibits, Exhibit) else list(exhibits)
        self._scene = build_scene(self._exhibits, names=names, labels=labels, title=title, stored=False)
        self._maps: OrderedDict[tuple[int, int | str], _Maps] = OrderedDict()
        self._reading = threading.Lock()

    @property
    def title(self) -> str:
        """Title of the scene."""
        return self._scene.header["title"]

    @property
    def map_bytes(self) -> int:
        """Bytes of the maps that are held."""
        return sum(rows.bytes + rows.lows.nbytes for maps in self._maps.values() for rows in maps.values())

    def scene_bytes(self) -> bytes:
        """Returns the scene."""
        return self._scene.to_bytes()

    def rows(self, request: RowsRequest) -> bytes:
        """Returns the rows of a query, of the layers that the page does not compute itself.

        Layer n has `{n}/levels` (heads, keys), `{n}/scales` (heads) and, if its weights are signed, `{n}/lows`. Raises
        RefusedError if there is no such network or image, or the network does not take it.
        """
        networks = self._scene.header["networks"]
        if request.network >= len(networks):
            raise RefusedError(404, f"network must be below {len(networks)}, but is {request.network}")
        count = len(self._exhibits[request.network].images)
        if isinstance(request.image, int) and request.image >= count:
            raise RefusedError(404, f"image must be below {count}, but is {request.image}")
        tensors: dict[str, Tensor] = {}
        for number, layer in enumerate(networks[request.network]["layers"]):
            place = self._find(layer, request.query)
            if place is None:
                continue
            rows = self._maps_of(request.network, request.image).get((layer["name"], request.part))
            if rows is not None:
                group, query = place
                found = {name: tensor[group, :, query].contiguous() for name, tensor in rows._asdict().items()}
                if not found["lows"].any():
                    del found["lows"]
                tensors |= {f"{number}/{name}": tensor for name, tensor in found.items()}
        return save(tensors)

    def _find(self, layer: Mapping[str, Any], query: tuple[float, float] | int) -> tuple[int, int] | None:
        """Returns the group of a query and its place there; None if the layer has none, or is computed in the page."""
        if layer["attention"]["kind"] != "maps":
            return None
        if isinstance(query, int):
            if not 0 <= query < len(layer["prefix"]):
                return None
            index = -1 - query
        else:
            row, col = _nearest(layer, query)
            index = row * layer["grid"][1] + col
        found = (self._scene.tensors[layer["attention"]["queries"]] == index).nonzero()
        return (int(found[0, 0]), int(found[0, 1])) if len(found) else None

    def _maps_of(self, network: int, image: int | str) -> _Maps:
        """Returns the maps of a network on an image, or their mean; they are computed unless they are held."""
        with self._reading:
            if (network, image) not in self._maps:
                self._maps[network, image] = self._read(network, image)
            self._maps.move_to_end((network, image))
            maps = self._maps[network, image]
            while self.map_bytes > MAP_BYTES:
                self._maps.popitem(last=False)
            return maps

    def _read(self, network: int, image: int | str) -> _Maps:
        """Runs a network on an image, or on all of them, for the mean."""
        exhibit = self._exhibits[network]
        chosen = exhibit.images if isinstance(image, str) else exhibit.images[image][None]
        layers = self._scene.header["networks"][network]["layers"]
        wanted = {layer["name"] for layer in layers if layer["attention"]["kind"] == "maps"}
        sums: dict[tuple[str, str], Tensor] = {}

        def add(call: LayerCall) -> None:
            for part, weights in call.parts.items() if call.name in wanted else ():
                sums[call.name, part] = weights.float().cpu() + sums.get((call.name, part), 0)

        try:
            with torch.no_grad():
                for one in chosen:
                    read_layers(exhibit.network, one[None], add, layers=exhibit.layers)
        except ConvAttnError as error:
            raise RefusedError(422, f"the network does not take this image: {error}") from error
        return {key: encode_rows(total / len(chosen)) for key, total in sums.items()}


def _nearest(layer: Mapping[str, Any], query: tuple[float, float]) -> list[int]:
    """Returns the cell that is nearest to a pixel, as the page finds it."""
    place = layer["place"]
    axes = zip(query, place["first"], place["step"], layer["grid"], strict=True)
    return [min(max(math.floor((at - first) / step + 0.5), 0), size - 1) for at, first, step, size in axes]
