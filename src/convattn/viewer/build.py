"""Networks and images → scene."""

from collections.abc import Sequence
from typing import Any

from convattn.convert.classes import full_name
from convattn.encodings import GeneralizedQuadratic, Quadratic
from convattn.errors import ArgumentError, must_be
from convattn.layers import RelativeAttention
from convattn.viewer.exhibit import Exhibit
from convattn.viewer.layers import MetLayer, met_layers
from convattn.viewer.maps import ReadMaps, is_positional, read_maps
from convattn.viewer.places import Place, key_place, query_place
from convattn.viewer.position import describe_position
from convattn.viewer.program import Program, make_program
from convattn.viewer.scene import SCHEMA, Collected, Scene
from convattn.viewer.statistics import describe_statistics, describe_timeline
from convattn.viewer.stored import StoredMaps, prefix_names
from convattn.viewer.texts import readable, require_texts

LARGEST = 64 * 2**20
"""Bytes that the tensors of a scene may have."""


def build_scene(
    exhibits: Exhibit | Sequence[Exhibit],
    *,
    names: Sequence[str] = (),
    labels: Sequence[str] = (),
    title: str = "",
    stored: bool = True,
    largest: int = LARGEST,
) -> Scene:
    """Makes what the interactive page shows of one or more networks on the same images.

    Layers of this library that attend by displacement alone come with their scores and their matrices, so that the page
    computes them; networks made of them run in it from the picture to the class scores. The attention of other layers,
    of this library, timm, transformers or torchvision, is read image by image and stored as bytes.

    Args:
        exhibits: The networks, with their images.
        names: Name of each image; () numbers them.
        labels: What each image shows; () if unknown.
        title: Title of the page; "" takes that of the first network.
        stored: Whether to store maps; without them a server must be asked for rows.
        largest: Bytes that the tensors may have together.

    Returns:
        The scene.

    Raises:
        ArgumentError: Numbers of images or names differ, or a network holds numbers that are not finite.
        SceneSizeError: The scene would be too large.
        UnknownNameError: A network has no layer of a name that is asked for.
        UnsupportedModelError: A network has no attention that can be read, or a layer that attends on a sequence or a
            volume.

    Example:
        >>> import torch
        >>> from convattn import AttentionNet
        >>> network = AttentionNet(width=8, depth=1, heads=4, ffn=8)
        >>> scene = build_scene(Exhibit(network, torch.zeros(2, 3, 16, 16)))
        >>> [layer["grid"] for layer in scene.header["networks"][0]["layers"]]
        [[8, 8]]
    """
    shown = [exhibits] if isinstance(exhibits, Exhibit) else list(exhibits)
    _require(shown, names, labels)
    collected = Collected(largest)
    first = shown[0]
    images = [
        {
            "name": readable(names[number]) if names else f"image {number + 1}",
            "label": readable(labels[number]) if labels else None,
            "picture": collected.add(f"pictures/{number}", picture),
            "note": note,
        }
        for number, (picture, note) in enumerate(zip(first.pictures(), first.notes(), strict=True))
    ]
    networks = [_Network(one, number, first.size, collected).describe(stored) for number, one in enumerate(shown)]
    header = {
        "schema": SCHEMA,
        "title": readable(title) or networks[0]["title"],
        "images": images,
        "networks": networks,
    }
    return Scene(header, collected.tensors)


class _Network:
    """One network while it is described."""

    def __init__(self, exhibit: Exhibit, number: int, size: tuple[int, int], collected: Collected) -> None:
        self.exhibit, self.number, self.size, self.collected = exhibit, number, size, collected
        self._runs = exhibit.shows_pictures and exhibit.size == size  # if the page has its program
        self.factor = [shown / own for shown, own in zip(size, exhibit.size, strict=True)]

    def describe(self, stored: bool) -> dict[str, Any]:
        """Describes the network."""
        exhibit, network = self.exhibit, self.exhibit.network
        met = met_layers(network, exhibit.images[:1], exhibit.layers)
        numbers = {layer.name: number for number, layer in enumerate(met) if layer.positional}
        program = make_program(network, numbers)
        maps = self._read_maps(met, stored=stored)
        layers = [self._layer(number, layer, program, maps.get(layer.name)) for number, layer in enumerate(met)]
        timeline = self._timeline(met)
        name = f"networks/{self.number}"
        return {
            "name": readable(exhibit.name),
            "title": readable(exhibit.title) or type(network).__name__,
            "note": " ".join(filter(None, [readable(exhibit.note), *self._left_out(program, timeline)])),
            "classes": [readable(name) for name in exhibit.classes] or None,
            "input": self._input(),
            "program": program.collect(name, self.collected) if program and self._runs else None,
            "layers": layers,
            "timeline": timeline,
        }

    def _left_out(self, program: Program | None, timeline: dict[str, Any] | None) -> list[str]:
        """Says what the page could show of a network with other pictures, or with all its layers."""
        exhibit, found = self.exhibit, []
        if program and exhibit.shows_pictures and not self._runs:
            (rows, cols), (shown_rows, shown_cols) = exhibit.size, self.size
            found.append(
                f"It takes images of {rows} × {cols} pixels and the pictures here have {shown_rows} × {shown_cols}, so"
                " that the page does not run it."
            )
        if exhibit.layers is None:
            return found
        every = {name: 0 for name, module in exhibit.network.named_modules() if is_positional(module)}
        if self._runs and not program and make_program(exhibit.network, every):
            found.append("Some layers are left out, so the page has no class scores and takes no own images.")
        if exhibit.heads and timeline is None:
            found.append("Its training is shown only with all layers.")
        return found

    def _input(self) -> dict[str, Any] | None:
        rows, cols = self.exhibit.size
        mean, std = list(self.exhibit.mean), list(self.exhibit.std)
        return {"rows": rows, "cols": cols, "mean": mean, "std": std} if mean else None

    def _read_maps(self, met: Sequence[MetLayer], *, stored: bool) -> dict[str, StoredMaps]:
        """Reads the maps of all layers that need them, image by image."""
        if all(layer.positional for layer in met):
            return {}
        exhibit = self.exhibit
        maps: dict[str, StoredMaps] = {}
        images = len(exhibit.images) if stored else 1
        for image in range(images):
            taken = 0

            def add(read: ReadMaps, image: int = image) -> None:
                nonlocal taken
                if read.name not in maps:
                    maps[read.name] = StoredMaps.begin(read)
                if stored:
                    taken += maps[read.name].add(read.parts, image, mean=images > 1)

            read_maps(exhibit.network, exhibit.images[image : image + 1], add, layers=exhibit.layers)
            if image == 0:
                self.collected.reserve(taken * (images + (images > 1)))
        for one in maps.values():
            one.finish()
        return maps

    def _layer(self, number: int, layer: MetLayer, program: Program | None, maps: StoredMaps | None) -> dict[str, Any]:
        exhibit, name, module = self.exhibit, f"networks/{self.number}/layers/{number}", layer.module
        position = None
        if isinstance(module, RelativeAttention):
            axes = module.geometry.axes(layer.size)
            position = describe_position(module, axes, name, self.collected, values=maps is None)
            geometry = self._own_geometry(module, layer.size, program.places.get(layer.name) if program else None)
        else:
            assert maps is not None
            geometry = self._layout_geometry(maps)
        if maps is not None:
            prefix = prefix_names(exhibit.network, int(maps.layout.key_prefix.sum()))
            heads, pattern, normalised = maps.heads, maps.layout.pattern, maps.normalised
            attention = maps.describe(name, f"{self.number}/{number}", position, self.collected)
        else:
            assert isinstance(module, RelativeAttention)
            heads, pattern, normalised, prefix, attention = module.num_heads, "global", True, [], position
        return {
            "name": layer.name,
            "kind": full_name(type(module)),
            "pattern": pattern,
            "heads": heads,
            **geometry,
            "normalised": normalised,
            "prefix": prefix,
            **describe_statistics(exhibit.report, layer.name, heads),
            "attention": attention,
        }

    def _own_geometry(self, module: RelativeAttention, size: tuple[int, ...], features: Place | None) -> dict[str, Any]:
        """Says where queries and keys of a layer of this library lie."""
        axes = module.geometry.axes(size)
        keys = key_place(features or Place.covering(self.exhibit.size, size), module.geometry)
        return self._geometry(
            [len(axis.queries) for axis in axes], query_place(keys, axes), [axis.keys for axis in axes], keys
        )

    def _layout_geometry(self, maps: StoredMaps) -> dict[str, Any]:
        """Says where queries and keys of another layer lie."""
        queries = maps.place(self.exhibit.size)
        lattice = maps.lattice
        return self._geometry(
            list(maps.layout.grid), queries, list(lattice.grid), queries.among(lattice.first, lattice.step)
        )

    def _geometry(self, grid: list[int], queries: Place, key_grid: list[int], keys: Place) -> dict[str, Any]:
        placed = queries.scaled(self.factor).to_json()
        return {"grid": grid, "place": placed, "keys": {"grid": key_grid, **keys.scaled(self.factor).to_json()}}

    def _timeline(self, met: Sequence[MetLayer]) -> dict[str, Any] | None:
        centred = [
            (number, layer.module.num_heads)
            for number, layer in enumerate(met)
            if isinstance(layer.module, RelativeAttention)
            and isinstance(layer.module.encoding, Quadratic | GeneralizedQuadratic)
        ]
        numbers, heads = [number for number, _ in centred], [count for _, count in centred]
        return describe_timeline(self.exhibit.heads, numbers, heads, f"networks/{self.number}", self.collected)


def _require(shown: Sequence[Any], names: Sequence[str], labels: Sequence[str]) -> None:
    if not shown or not all(isinstance(one, Exhibit) for one in shown):
        raise ArgumentError(must_be("exhibits", "one Exhibit or more", shown))
    count = len(shown[0].images)
    for one in shown[1:]:
        if len(one.images) != count:
            raise ArgumentError(
                must_be(f"images of {one.name}", f"{count}, as those of {shown[0].name}", len(one.images))
            )
    for argument, texts in (("names", names), ("labels", labels)):
        require_texts(argument, texts)
        if len(texts) not in (0, count):
            raise ArgumentError(must_be(argument, f"one for each of {count} images", list(texts)))
    called = [one.name for one in shown]
    if len(set(called)) < len(called):
        raise ArgumentError(must_be("the names of the networks", "different", called))
