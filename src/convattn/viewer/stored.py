"""Layers of a scene whose attention depends on the image: their maps, stored image by image."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from convattn.adapters.attention import Layout
from convattn.errors import UnsupportedModelError
from convattn.viewer.lattices import Lattice, key_lattice, query_indices
from convattn.viewer.maps import ReadMaps, Rows, encode_rows
from convattn.viewer.places import Place
from convattn.viewer.scene import Collected


@dataclass
class StoredMaps:
    """The maps of one layer while images pass: rows in bytes of each, and the sum of the weights of all."""

    name: str
    layout: Layout
    lattice: Lattice
    heads: int
    normalised: bool
    parts: list[str]  # Parts of the attention that have maps, stored or not
    rows: dict[tuple[str, int | str], Rows] = field(default_factory=dict)  # by part and image
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _images: int = 0

    @classmethod
    def begin(cls, read: ReadMaps) -> "StoredMaps":
        """Starts with none; a layout that is no grid of rows and columns raises UnsupportedModelError."""
        layout = read.call.layout
        require_image_grid(read.name, len(layout.grid))
        try:
            lattice = key_lattice(layout)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{read.name}: {error}") from None
        call = read.call
        return cls(read.name, layout, lattice, call.weights.shape[2], call.normalised, list(read.parts))

    def add(self, parts: Mapping[str, Tensor], image: int, *, mean: bool) -> int:
        """Adds the next image; with `mean` its weights count in the mean. Returns how many bytes it takes."""
        taken = 0
        for part, weights in parts.items():
            self.rows[part, image] = rows = encode_rows(weights.cpu())
            taken += rows.bytes
            if mean:
                self._sums[part] = weights.float().cpu() + self._sums.get(part, 0)
        self._images += 1
        return taken

    def finish(self) -> None:
        """Makes the mean over the images; the sums are let go."""
        for part in list(self._sums):
            self.rows[part, "mean"] = encode_rows(self._sums.pop(part) / self._images)

    def place(self, image: tuple[int, int]) -> Place:
        """Returns where the queries lie on the image, whose cells are taken to divide it evenly."""
        rows, cols = self.layout.grid
        return Place.covering(image, (rows, cols))

    def describe(self, name: str, number: str, position: dict[str, Any] | None, collected: Collected) -> dict[str, Any]:
        """Describes the attention; `number` is "network/layer", by which the maps are named."""
        signed = any(bool(rows.lows.any()) for rows in self.rows.values())
        for (part, image), rows in self.rows.items():
            held = {"levels": rows.levels, "scales": rows.scales} | ({"lows": rows.lows} if signed else {})
            for kind, tensor in held.items():
                collected.tensors[f"maps/{number}/{part}/{image}/{kind}"] = tensor.contiguous()
        images = list(dict.fromkeys(image for _, image in self.rows))
        self.rows.clear()
        allowed = self.layout.allowed
        return {
            "kind": "maps",
            "parts": [self.parts[0], *(["position"] if position else []), *self.parts[1:]],
            "position": position,
            "queries": collected.add(f"{name}/queries", query_indices(self.layout)),
            "keys": collected.add(f"{name}/keys", self.lattice.keys),
            "allowed": None if allowed is None else collected.add(f"{name}/allowed", allowed.to(torch.uint8)),
            "signed": signed,
            "stored": bool(images),
            "images": images,
        }


def require_image_grid(name: str, axes: int) -> None:
    """Raises UnsupportedModelError unless a grid has rows and columns."""
    if axes != 2:
        found = "a sequence" if axes == 1 else f"a grid of {axes} axes"
        raise UnsupportedModelError(
            f"{name} attends on {found}, and the viewer shows images: rows and columns; name other layers to show"
        )


def prefix_names(network: nn.Module, count: int) -> list[str]:
    """Names the tokens of a network that have no place on the image, first to last."""
    held = {name.rpartition(".")[2] for name, _ in network.named_parameters()}
    names = []
    if held & {"cls_token", "class_token", "cls_embed"}:
        names.append("class")
    if held & {"dist_token", "distillation_token"}:
        names.append("distillation")
    return [*names, *(f"register {n + 1}" for n in range(count))][:count]
