"""Networks and images → scene."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from convattn.encodings import (
    ENCODINGS,
    AxisAdditiveEncoding,
    Encoding,
    GeneralizedQuadratic,
    Quadratic,
)
from convattn.errors import ArgumentError, UnsupportedModelError, must_be
from convattn.grid import Axis
from convattn.heads.families.attention_class import PREFIX_TOKENS
from convattn.heads.head_report import HEAD_NUMBERS, HeadReport, HeadStatistics
from convattn.heads.head_snapshots import HeadSnapshot
from convattn.layers import RelativeAttention
from convattn.structure import full_name
from convattn.viewer.exhibit import Exhibit
from convattn.viewer.image_maps import LayerCall, LayerMaps, is_positional, read_layers
from convattn.viewer.lattice import Place
from convattn.viewer.page_program import Program, make_program
from convattn.viewer.scene import SCHEMA, Scene, SceneTensors

LARGEST = 64 * 2**20
"""Bytes that the tensors of a scene may have."""


def build_scene(
    exhibits: Exhibit | Sequence[Exhibit],
    *,
    names: Sequence[str] = (),
    labels: Sequence[str] = (),
    title: str = "",
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
        largest: Bytes that the tensors may have together.

    Returns:
        The scene.

    Raises:
        ArgumentError: Numbers of images or names differ, a network has no layer of a name that is asked for, or holds
            numbers that are not finite.
        SceneSizeError: The scene would be too large.
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
    if isinstance(exhibits, Exhibit):
        exhibits = [exhibits]
    _require(exhibits, names, labels)
    first = exhibits[0]
    tensors = SceneTensors(largest)
    images = _describe_images(first, names, labels, tensors)
    networks = []
    for number, exhibit in enumerate(exhibits):
        networks.append(_Network(exhibit, number, first, tensors).describe())
    header = {
        "schema": SCHEMA,
        "title": title or networks[0]["title"],
        "images": images,
        "networks": networks,
    }
    return Scene(header, tensors.by_name)


def _require(exhibits: Sequence[Any], names: Sequence[str], labels: Sequence[str]) -> None:
    if not exhibits or not all(isinstance(exhibit, Exhibit) for exhibit in exhibits):
        raise ArgumentError(must_be("exhibits", "one Exhibit or more", exhibits))
    count = len(exhibits[0].images)
    for exhibit in exhibits:
        if len(exhibit.images) != count:
            expected = f"{count}, as those of {exhibits[0].name}"
            raise ArgumentError(must_be(f"images of {exhibit.name}", expected, len(exhibit.images)))
    for argument, texts in (("names", names), ("labels", labels)):
        if len(texts) not in (0, count):
            raise ArgumentError(must_be(argument, f"one for each of {count} images", list(texts)))
    titles = [exhibit.name for exhibit in exhibits]
    if len(set(titles)) < len(titles):
        raise ArgumentError(must_be("the names of the networks", "different", titles))


def _describe_images(
    first: Exhibit, names: Sequence[str], labels: Sequence[str], tensors: SceneTensors
) -> list[dict[str, Any]]:
    pictures, notes = first.pictures(), first.notes()
    images = []
    for number, picture in enumerate(pictures):
        image = {
            "name": names[number] if names else f"image {number + 1}",
            "label": labels[number] if labels else None,
            "picture": tensors.add(f"pictures/{number}", picture),
            "note": notes[number],
        }
        images.append(image)
    return images


def _shows_all(first: Exhibit, exhibit: Exhibit) -> bool:
    """Tells whether the pictures, made for the first network, show all of another's images."""
    if not first.shows_pictures or not exhibit.shows_pictures:
        return False
    return exhibit.size == first.size and exhibit.images.shape[1] <= first.images.shape[1]


class _Network:
    """One network while it is described."""

    def __init__(
        self, exhibit: Exhibit, number: int, first: Exhibit, tensors: SceneTensors
    ) -> None:
        self.exhibit, self.number, self.tensors = exhibit, number, tensors
        self.key = f"networks/{number}"
        self.runs_in_page = _shows_all(first, exhibit)
        self.scale = np.divide(first.size, exhibit.size)
        self.maps: dict[str, LayerMaps] = {}

    def describe(self) -> dict[str, Any]:
        """Describes the network."""
        exhibit, network = self.exhibit, self.exhibit.network
        calls = self._read()
        computed = {
            call.name: number for number, call in enumerate(calls) if call.name not in self.maps
        }
        program = make_program(network, computed)
        layers = [self._describe_layer(number, call, program) for number, call in enumerate(calls)]
        shown = [call.name for call in calls]
        measured = [layer.name for layer in exhibit.report.layers] if exhibit.report else []
        numbered = measured if {*shown} <= {*measured} else shown  # in one way for all of them
        for layer in layers:
            layer["number"] = numbered.index(layer["name"]) + 1
        timeline = self._describe_timeline(calls)
        notes = [exhibit.note, *self._left_out(program, timeline)]
        operations = None
        if program and self.runs_in_page:
            operations = program.collect(self.key, self.tensors)
        return {
            "name": exhibit.name,
            "title": exhibit.title or type(network).__name__,
            "note": " ".join(filter(None, notes)),
            "classes": list(exhibit.classes) or None,
            "input": _describe_input(exhibit),
            "program": operations,
            "layers": layers,
            "timeline": timeline,
        }

    def _read(self) -> list[LayerCall]:
        """Runs the network on its images and encodes the maps; returns the calls on the first image, without tensors.

        Where there are no maps, the first image is enough.
        """
        calls: list[LayerCall] = []
        image = 0

        def note(call: LayerCall) -> None:
            if image == 0:
                calls.append(call._replace(attention=None, parts={}))
                if call.attention is not None:
                    number = f"{self.number}/{len(calls) - 1}"
                    self.maps[call.name] = LayerMaps(call, number, self.tensors)
            maps = self.maps.get(call.name)
            if maps is None or call.attention is None:
                return
            if not call.attention.layout.equals(maps.layout):
                raise UnsupportedModelError(
                    f"{call.name}: what it sees differs between images, and one map stands for all: show one image"
                )
            maps.add(call.parts, image)

        for image, pixels in enumerate(self.exhibit.images):
            if image == 0 or self.maps:
                read_layers(self.exhibit.network, pixels[None], note, layers=self.exhibit.layers)
        return calls

    def _describe_layer(
        self, number: int, call: LayerCall, program: Program | None
    ) -> dict[str, Any]:
        key, module, maps = f"{self.key}/layers/{number}", call.module, self.maps.get(call.name)
        position = None
        if isinstance(module, RelativeAttention):
            axes = module.geometry.axes(call.size)
            position = describe_position(module, axes, key, self.tensors, values=maps is None)
            features = program.places.get(call.name) if program else None
            if features is None:
                features = Place.covering(self.exhibit.size, call.size)
            keys = _own_keys(module, features)
            among_keys = position["queries"]
            queries = keys.among(among_keys["first"], among_keys["stride"])
            grid = [len(axis.queries) for axis in axes]
            key_grid = [axis.keys for axis in axes]
            heads, pattern, prefix = module.num_heads, "global", []
        else:
            assert maps is not None
            layout, lattice = maps.layout, maps.lattice
            grid, key_grid = list(layout.grid), lattice.grid
            queries = Place.covering(self.exhibit.size, grid)
            keys = queries.among(lattice.first, lattice.step)
            heads, pattern = maps.heads, layout.pattern
            prefix = prefix_names(self.exhibit.network, int(layout.key_prefix.sum()))
        normalised, attention = True, position
        if maps is not None:
            normalised, attention = maps.normalised, maps.describe(key, position)
        return {
            "name": call.name,
            "number": number + 1,
            "kind": full_name(type(module)),
            "pattern": pattern,
            "heads": heads,
            "grid": grid,
            "place": queries.scaled(self.scale).to_json(),
            "keys": {"grid": key_grid, **keys.scaled(self.scale).to_json()},
            "normalised": normalised,
            "prefix": prefix,
            **_describe_statistics(self.exhibit.report, call.name, heads),
            "attention": attention,
        }

    def _left_out(self, program: Program | None, timeline: dict[str, Any] | None) -> list[str]:
        """Returns notes on what the page leaves out: it needs pictures of the network's own size, or all layers."""
        exhibit, notes = self.exhibit, []
        if program and exhibit.shows_pictures and not self.runs_in_page:
            notes.append(
                "The page does not run it: the pictures, made for the first network, do not show all of its images."
            )
        if exhibit.layers is None:
            return notes
        every = {
            name: 0 for name, module in exhibit.network.named_modules() if is_positional(module)
        }
        if self.runs_in_page and not program and make_program(exhibit.network, every):
            notes.append(
                "Some layers are left out, so the page has no class scores and takes no own images."
            )
        if exhibit.heads and timeline is None:
            notes.append("Its training is shown only with all layers.")
        return notes

    def _describe_timeline(self, calls: Sequence[LayerCall]) -> dict[str, Any] | None:
        heads = {}
        for number, call in enumerate(calls):
            encoding = getattr(call.module, "encoding", None)
            if isinstance(encoding, Quadratic | GeneralizedQuadratic):
                heads[number] = encoding.num_heads
        return describe_timeline(self.exhibit.heads, heads, self.key, self.tensors)


def _describe_input(exhibit: Exhibit) -> dict[str, Any] | None:
    """Describes how pictures become images of the network; None where that is not known."""
    if not exhibit.mean:
        return None
    rows, cols = exhibit.size
    return {"rows": rows, "cols": cols, "mean": list(exhibit.mean), "std": list(exhibit.std)}


def _own_keys(module: RelativeAttention, features: Place) -> Place:
    """Returns where the keys of a layer of this library lie, given where its features lie."""
    before = np.array([pair[0] for pair in module.geometry.padding])
    spread = np.array(module.geometry.input_dilation)
    return features.among(-before / spread, 1 / spread)


def prefix_names(network: nn.Module, count: int) -> list[str]:
    """Names the tokens of a network that have no place on the image, first to last; "token 1" if nothing says more."""
    parameters = {name.rpartition(".")[2] for name, _ in network.named_parameters()}
    kinds = list(dict.fromkeys(kind for name, kind in PREFIX_TOKENS.items() if name in parameters))
    several = "token"
    if "register" in kinds:
        several = kinds.pop()
    others = [f"{several} {number + 1}" for number in range(count)]
    return [*kinds, *others][:count]


@torch.no_grad()
def describe_position(
    layer: RelativeAttention,
    axes: tuple[Axis, ...],
    key: str,
    tensors: SceneTensors,
    *,
    values: bool = True,
) -> dict[str, Any]:
    """Describes a layer's attention by displacement; `values` tells whether the page also computes its output.

    The scores are those of every displacement on the grid, in float32, from the lowest to the highest along each axis;
    of an encoding that adds up over the axes, those of each axis, whose sum the page takes.
    """
    encoding, geometry = layer.encoding, layer.geometry
    device = layer.like.device
    scores = by_axis = matrices = bias = None
    if isinstance(encoding, AxisAdditiveEncoding):
        by_axis = []
        for number, table in enumerate(encoding.axis_tables(axes, device=device)):
            by_axis.append(tensors.add(f"{key}/axes/{number}", table))
    else:
        scores = tensors.add(f"{key}/scores", encoding.table(axes, device=device))
    if values:
        matrices = tensors.add(f"{key}/values", layer.values.maps())
        if layer.bias is not None:
            bias = tensors.add(f"{key}/bias", layer.bias)
    return {
        "kind": "position",
        "scores": scores,
        "axes": by_axis,
        "queries": {
            "first": [axis.queries.start for axis in axes],
            "stride": [axis.queries.step for axis in axes],
        },
        "heads": _describe_heads(encoding, key, tensors),
        "values": matrices,
        "bias": bias,
        "padding": {
            "pairs": [list(pair) for pair in geometry.padding],
            "mode": geometry.padding_mode,
            "spread": list(geometry.input_dilation),
        },
        "groups": layer.groups,
    }


def _describe_heads(encoding: Encoding, key: str, tensors: SceneTensors) -> dict[str, Any]:
    centres = sharpness = None
    if encoding.head_centres is not None:
        centres = tensors.add(f"{key}/centres", encoding.head_centres)
    if isinstance(encoding, Quadratic):
        sharpness = tensors.add(f"{key}/sharpness", encoding.sharpness)
    kind = type(encoding)
    names = {registered: name for name, registered in ENCODINGS.items()}
    return {
        "encoding": names.get(kind, kind.__name__),
        "centres": centres,
        "sharpness": sharpness,
    }


def _describe_statistics(report: HeadReport | None, name: str, heads: int) -> dict[str, Any]:
    """Returns the sentence of a layer and the numbers of its heads; None where the report lacks it."""
    layers = report.layers if report else ()
    for layer in layers:
        if layer.name == name and len(layer.heads) == heads:
            numbers = []
            for head, verdict in zip(layer.heads, layer.verdicts, strict=True):
                numbers.append({**_describe_head(head), "verdict": str(verdict)})
            return {
                "sentence": layer.sentence,
                # JSON has no nan: null stands for it
                "statistics": json.loads(json.dumps(numbers), parse_constant=lambda _: None),
                "measured_on": report.images if report else 0,
            }
    return {"sentence": None, "statistics": None, "measured_on": 0}


def _describe_head(head: HeadStatistics) -> dict[str, Any]:
    """Returns the numbers of a head, each with its error."""
    row = head.row()
    described = {}
    for name in (*HEAD_NUMBERS, "shift", "hard_shift"):
        described[name] = {"value": row[name], "error": row[f"{name}_error"]}
    return described


def describe_timeline(
    snapshots: Sequence[HeadSnapshot], layers: Mapping[int, int], key: str, tensors: SceneTensors
) -> dict[str, Any] | None:
    """Describes where quadratic heads were during training; None where snapshots are none, or of other layers.

    `layers` says how many such heads each layer has, by the layer's number. A layer with fewer heads than another is
    filled up with nan.
    """
    heads = list(layers.values())
    recorded = {(shot.layer, len(shot.centres)) for shot in snapshots}
    if not snapshots or recorded != set(enumerate(heads)):
        return None
    times = sorted({(shot.step, shot.epoch) for shot in snapshots})
    sizes = (len(times), len(heads), max(heads))
    centres = torch.full((*sizes, 2), math.nan)
    sharpness = torch.full(sizes, math.nan)
    for shot in snapshots:
        moment = times.index((shot.step, shot.epoch))
        count = heads[shot.layer]
        centres[moment, shot.layer, :count] = torch.from_numpy(shot.centres)
        # Σ⁻¹ = 2α of a quadratic head, and its mean over the directions of a generalised one.
        trace = shot.precisions.trace(axis1=1, axis2=2)
        sharpness[moment, shot.layer, :count] = torch.from_numpy(trace / 4)
    return {
        "epochs": [epoch for _, epoch in times],
        "centres": tensors.add(f"{key}/timeline/centres", centres, gaps=True),
        "sharpness": tensors.add(f"{key}/timeline/sharpness", sharpness, gaps=True),
        "layers": list(layers),
    }
