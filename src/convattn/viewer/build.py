"""Networks and images → scene."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from convattn.convert.surgery import full_name
from convattn.encodings import (
    AxisAdditiveEncoding,
    Encoding,
    GeneralizedQuadratic,
    Quadratic,
    Shift,
)
from convattn.encodings.registry import ENCODINGS
from convattn.errors import ArgumentError, ShapeError, must_be, must_be_a
from convattn.grid import Axis, Geometry
from convattn.heads.head_report import HEAD_NUMBERS, HeadReport, HeadStatistics
from convattn.heads.head_snapshots import HeadSnapshot
from convattn.layers import RelativeAttention
from convattn.viewer.image_maps import LayerCall, LayerMaps, is_positional, read_layers
from convattn.viewer.lattice import Place
from convattn.viewer.page_program import Program, make_program
from convattn.viewer.scene import SCHEMA, Scene, SceneTensors

_ROUNDING = 1 / 510
"""Rounding error of a picture that is stored in bytes."""

_CLIPPED = (
    "{:.3g}% of this image's numbers lie outside 0 to 1 before normalisation (from {:.3g} to {:.3g}). The picture shows"
    " them cut off, and what is computed in the page is of the picture."
)


@dataclass(frozen=True, eq=False)
class Exhibit:
    """One of the networks that a scene shows side by side.

    Attributes:
        network: The network.
        images: The images prepared for it, (images, channels, rows, cols), on its device.
        name: Short name, which no other network of the scene has.
        title: What the page calls it; "" takes the class.
        note: A sentence about it.
        mean: Mean per channel that was taken from pixels between 0 and 1 when the images were prepared; () if unknown.
        std: Standard deviation per channel, by which they were then divided; () if unknown.
        classes: Names of the classes that it scores; () if unknown.
        report: What its heads look at, measured before; or None.
        heads: Where its heads looked while it was trained.
        layers: Names of the layers to show; None shows all that can be read.
    """

    network: nn.Module
    images: Float[Tensor, "images channels rows cols"]
    name: str = "network"
    title: str = ""
    note: str = ""
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    classes: tuple[str, ...] = ()
    report: HeadReport | None = None
    heads: Sequence[HeadSnapshot] = field(default=())
    layers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Checks the network and the images."""
        if not isinstance(self.network, nn.Module):
            raise ArgumentError(must_be_a("network", "a network (torch.nn.Module)", self.network))
        images = self.images
        if not isinstance(images, Tensor) or images.ndim != 4 or not images.numel():
            found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise ShapeError(
                must_be(
                    "images", "of shape (images, channels, rows, cols), with at least one", found
                )
            )
        if images.is_meta:
            raise ArgumentError(must_be("images", "on a device that holds numbers", images.device))
        if not images.is_floating_point() or not bool(torch.isfinite(images).all()):
            raise ArgumentError("images must be finite floating-point numbers")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), images.shape[1]))
        if bool(self.mean) != bool(self.std) or not all(value > 0 for value in self.std):
            raise ArgumentError(
                must_be("std", "positive numbers, given together with mean", self.std)
            )

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the images."""
        return self.images.shape[2], self.images.shape[3]

    @property
    def shows_pictures(self) -> bool:
        """Whether a picture says all of an image: mean and std are known, and the channels are grey or colours."""
        return bool(self.mean) and self.images.shape[1] in (1, 3)

    def pictures(self) -> UInt8[Tensor, "images rows cols 3"]:
        """Returns the images as pictures; without mean and std, each is stretched between its extremes."""
        images = self._before_normalisation()
        if not self.mean:
            low, high = (images.flatten(1).aminmax(dim=1)[n].view(-1, 1, 1, 1) for n in (0, 1))
            images = (images - low) / torch.where(high > low, high - low, 1)
        if images.shape[1] not in (1, 3):
            images = images.mean(1, keepdim=True)
        return (
            (images.clamp(0, 1) * 255)
            .round()
            .to(torch.uint8)
            .expand(-1, 3, -1, -1)
            .movedim(1, -1)
            .contiguous()
        )

    def notes(self) -> list[str]:
        """Returns a note for each image: which numbers outside 0 to 1 its picture cuts off; "" if there are none."""
        if not self.mean:
            return [""] * len(self.images)
        images = self._before_normalisation().flatten(1)
        outside = (images < -_ROUNDING) | (images > 1 + _ROUNDING)
        extremes = zip(outside.double().mean(1).tolist(), *(images.aminmax(dim=1)), strict=True)
        return [
            _CLIPPED.format(100 * share, low.item(), high.item()) if share else ""
            for share, low, high in extremes
        ]

    def _before_normalisation(self) -> Tensor:
        """Returns the images with the mean and deviation put back, where they are known."""
        images = self.images.detach().cpu().double()
        if not self.mean:
            return images
        mean, std = (
            torch.tensor(value, dtype=torch.float64).view(-1, 1, 1)
            for value in (self.mean, self.std)
        )
        return images * std + mean


def _numbers(name: str, given: Any, channels: int) -> tuple[float, ...]:
    """Returns a list or a tensor of numbers as floats."""
    try:
        numbers = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        numbers = None
    if (
        numbers is None
        or numbers.shape not in ((0,), (channels,))
        or not bool(numbers.isfinite().all())
    ):
        raise ArgumentError(
            must_be(name, f"one finite number for each of {channels} channels", given)
        )
    return tuple(numbers.tolist())


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
    collected = SceneTensors(largest)
    first = shown[0]
    images = [
        {
            "name": names[number] if names else f"image {number + 1}",
            "label": labels[number] if labels else None,
            "picture": collected.add(f"pictures/{number}", picture),
            "note": note,
        }
        for number, (picture, note) in enumerate(zip(first.pictures(), first.notes(), strict=True))
    ]
    networks = [
        _Network(one, number, first, collected).describe() for number, one in enumerate(shown)
    ]
    header = {
        "schema": SCHEMA,
        "title": title or networks[0]["title"],
        "images": images,
        "networks": networks,
    }
    return Scene(header, collected.tensors)


def _require(shown: Sequence[Any], names: Sequence[str], labels: Sequence[str]) -> None:
    if not shown or not all(isinstance(one, Exhibit) for one in shown):
        raise ArgumentError(must_be("exhibits", "one Exhibit or more", shown))
    count = len(shown[0].images)
    for one in shown[1:]:
        if len(one.images) != count:
            expected = f"{count}, as those of {shown[0].name}"
            raise ArgumentError(must_be(f"images of {one.name}", expected, len(one.images)))
    for argument, texts in (("names", names), ("labels", labels)):
        if len(texts) not in (0, count):
            raise ArgumentError(must_be(argument, f"one for each of {count} images", list(texts)))
    called = [one.name for one in shown]
    if len(set(called)) < len(called):
        raise ArgumentError(must_be("the names of the networks", "different", called))


class _Network:
    """One network while it is described."""

    def __init__(
        self, exhibit: Exhibit, number: int, first: Exhibit, collected: SceneTensors
    ) -> None:
        self.exhibit, self.number, self.size, self.collected = (
            exhibit,
            number,
            first.size,
            collected,
        )
        self.key = f"networks/{number}"
        told = (
            first.shows_pictures and first.images.shape[1] >= exhibit.images.shape[1]
        )  # All of its images
        self._runs = (
            told and exhibit.shows_pictures and exhibit.size == first.size
        )  # Whether the page runs it
        self._factor = [shown / own for shown, own in zip(first.size, exhibit.size, strict=True)]
        self._maps: dict[str, LayerMaps] = {}

    def describe(self) -> dict[str, Any]:
        """Describes the network."""
        exhibit, network = self.exhibit, self.exhibit.network
        calls = self._read()
        numbers = {
            call.name: number for number, call in enumerate(calls) if call.name not in self._maps
        }
        program = make_program(network, numbers)
        layers = [self._layer(number, call, program) for number, call in enumerate(calls)]
        timeline = self._timeline(calls)
        rows, cols = exhibit.size
        mean, std = list(exhibit.mean), list(exhibit.std)
        return {
            "name": exhibit.name,
            "title": exhibit.title or type(network).__name__,
            "note": " ".join(filter(None, [exhibit.note, *self._left_out(program, timeline)])),
            "classes": list(exhibit.classes) or None,
            "input": {"rows": rows, "cols": cols, "mean": mean, "std": std} if mean else None,
            "program": program.collect(self.key, self.collected)
            if program and self._runs
            else None,
            "layers": layers,
            "timeline": timeline,
        }

    def _read(self) -> list[LayerCall]:
        """Runs the network on its images and encodes the maps; returns the calls on the first image, without tensors.

        Where there are no maps, the first image is enough.
        """
        calls: list[LayerCall] = []

        def note(call: LayerCall) -> None:
            if image == 0:
                calls.append(call._replace(attention=None, parts={}))
                if call.attention is not None:
                    self._maps[call.name] = LayerMaps(call)
            if call.name in self._maps:
                self.collected.reserve(self._maps[call.name].add(call.parts, image))

        for image, pixels in enumerate(self.exhibit.images):
            if image == 0 or self._maps:
                read_layers(self.exhibit.network, pixels[None], note, layers=self.exhibit.layers)
        return calls

    def _layer(self, number: int, call: LayerCall, program: Program | None) -> dict[str, Any]:
        key, module, maps = f"{self.key}/layers/{number}", call.module, self._maps.get(call.name)
        position = None
        if isinstance(module, RelativeAttention):
            axes = module.geometry.axes(call.size)
            position = describe_position(module, axes, key, self.collected, values=maps is None)
            features = program.places.get(call.name) if program else None
            keys = _key_place(
                features or Place.covering(self.exhibit.size, call.size), module.geometry
            )
            queries = keys.among(
                [axis.queries.start for axis in axes], [axis.queries.step for axis in axes]
            )
            grid, key_grid = [len(axis.queries) for axis in axes], [axis.keys for axis in axes]
        else:
            assert maps is not None
            queries = Place.covering(self.exhibit.size, maps.layout.grid)
            keys = queries.among(maps.lattice.first, maps.lattice.step)
            grid, key_grid = list(maps.layout.grid), list(maps.lattice.grid)
        if maps is not None:
            prefix = prefix_names(self.exhibit.network, int(maps.layout.key_prefix.sum()))
            heads, pattern, normalised = maps.heads, maps.layout.pattern, maps.normalised
            attention = maps.describe(key, f"{self.number}/{number}", position, self.collected)
        else:
            assert isinstance(module, RelativeAttention)
            heads, pattern, normalised, prefix, attention = (
                module.num_heads,
                "global",
                True,
                [],
                position,
            )
        return {
            "name": call.name,
            "kind": full_name(type(module)),
            "pattern": pattern,
            "heads": heads,
            "grid": grid,
            "place": queries.scaled(self._factor).to_json(),
            "keys": {"grid": key_grid, **keys.scaled(self._factor).to_json()},
            "normalised": normalised,
            "prefix": prefix,
            **_describe_statistics(self.exhibit.report, call.name, heads),
            "attention": attention,
        }

    def _left_out(self, program: Program | None, timeline: dict[str, Any] | None) -> list[str]:
        """Returns notes on what the page leaves out: it needs pictures of the network's own size, or all layers."""
        exhibit, sentences = self.exhibit, []
        if program and exhibit.shows_pictures and not self._runs:
            own, shown = (" × ".join(map(str, size)) for size in (exhibit.size, self.size))
            reason = f"It takes images of {own} pixels and the pictures here have {shown}"
            if own == shown:
                reason = (
                    "The pictures here, made for the first network, do not show all of its images"
                )
            sentences.append(f"{reason}, so that the page does not run it.")
        if exhibit.layers is None:
            return sentences
        every = {
            name: 0 for name, module in exhibit.network.named_modules() if is_positional(module)
        }
        if self._runs and not program and make_program(exhibit.network, every):
            sentences.append(
                "Some layers are left out, so the page has no class scores and takes no own images."
            )
        if exhibit.heads and timeline is None:
            sentences.append("Its training is shown only with all layers.")
        return sentences

    def _timeline(self, calls: Sequence[LayerCall]) -> dict[str, Any] | None:
        centred = {
            number: call.module.num_heads
            for number, call in enumerate(calls)
            if isinstance(call.module, RelativeAttention)
            and isinstance(call.module.encoding, Quadratic | GeneralizedQuadratic)
        }
        return describe_timeline(self.exhibit.heads, centred, self.key, self.collected)


def _key_place(features: Place, geometry: Geometry) -> Place:
    """Returns where the keys of a layer lie, padded ones included, given where its features lie."""
    spread = geometry.input_dilation
    before = [pair[0] for pair in geometry.padding]
    return features.among(
        [-n / s for n, s in zip(before, spread, strict=True)], [1 / s for s in spread]
    )


def prefix_names(network: nn.Module, count: int) -> list[str]:
    """Names the tokens of a network that have no place on the image, first to last."""
    names = {name.rpartition(".")[2] for name, _ in network.named_parameters()}
    named = []
    if names & {"cls_token", "class_token", "cls_embed", "class_embedding"}:
        named.append("class")
    if names & {"dist_token", "distillation_token"}:
        named.append("distillation")
    return [*named, *(f"register {n + 1}" for n in range(count))][:count]


@torch.no_grad()
def describe_position(
    layer: RelativeAttention,
    axes: tuple[Axis, ...],
    name: str,
    collected: SceneTensors,
    *,
    values: bool = True,
) -> dict[str, Any]:
    """Describes a layer's attention by displacement; `values` tells whether the page also computes its output.

    The scores are those of every displacement on the grid, in float32, from the lowest to the highest along each axis;
    of an encoding that adds up over the axes, those of each axis, whose sum the page takes.
    """
    encoding, geometry = layer.encoding, layer.geometry
    device, add = next(layer.values.parameters()).device, collected.add
    additive = isinstance(encoding, AxisAdditiveEncoding)
    tables = encoding.axis_tables(axes, device=device) if additive else None
    described: dict[str, Any] = {
        "kind": "position",
        "scores": add(f"{name}/scores", encoding.table(axes, device=device))
        if tables is None
        else None,
        "axes": None
        if tables is None
        else [add(f"{name}/axes/{n}", table) for n, table in enumerate(tables)],
        "queries": {
            "first": [axis.queries.start for axis in axes],
            "stride": [axis.queries.step for axis in axes],
        },
        "heads": _describe_heads(encoding, name, collected),
        "values": None,
        "bias": None,
        "padding": {
            "pairs": [list(pair) for pair in geometry.padding],
            "mode": geometry.padding_mode,
            "spread": list(geometry.input_dilation),
        },
        "groups": layer.groups,
    }
    if values:
        described["values"] = add(f"{name}/values", layer.values.maps())
        described["bias"] = None if layer.bias is None else add(f"{name}/bias", layer.bias)
    return described


def _describe_heads(encoding: Encoding, name: str, collected: SceneTensors) -> dict[str, Any]:
    centres = sharpness = None
    if isinstance(encoding, Quadratic | GeneralizedQuadratic):
        centres = encoding.centres
    elif isinstance(encoding, Shift):
        centres = torch.tensor(encoding.displacements, dtype=torch.float32)
    if isinstance(encoding, Quadratic):
        sharpness = encoding.root_sharpness**2 / 2
    names = {kind: name for name, kind in ENCODINGS.items()}
    return {
        "encoding": names.get(type(encoding), type(encoding).__name__),
        "centres": None if centres is None else collected.add(f"{name}/centres", centres),
        "sharpness": None if sharpness is None else collected.add(f"{name}/sharpness", sharpness),
    }


def _describe_statistics(report: HeadReport | None, name: str, heads: int) -> dict[str, Any]:
    """Returns the sentence of a layer and the numbers of its heads; None where the report does not have it."""
    found = next((layer for layer in report.layers if layer.name == name), None) if report else None
    if found is None or len(found.heads) != heads:
        return {"sentence": None, "statistics": None}
    return {"sentence": found.sentence, "statistics": [_head(head) for head in found.heads]}


def _head(head: HeadStatistics) -> dict[str, Any]:
    """Returns the numbers of a head as JSON can hold them, where null stands for nan."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    numbers = {name: getattr(head, name) for name in HEAD_NUMBERS}
    return {
        "shift": {
            "value": [finite(one.value) for one in head.shift],
            "error": [finite(one.error) for one in head.shift],
        },
        "hard_shift": {"value": [finite(one) for one in head.hard_shift], "error": None},
        **{
            name: {"value": finite(one.value), "error": finite(one.error)}
            for name, one in numbers.items()
        },
    }


def describe_timeline(
    snapshots: Sequence[HeadSnapshot], layers: Mapping[int, int], name: str, collected: SceneTensors
) -> dict[str, Any] | None:
    """Describes where quadratic heads were during training; None where snapshots are none, or of other layers.

    `layers` says how many such heads each layer has, by the layer's number. A layer with fewer heads than another is
    filled up with nan.
    """
    heads = list(layers.values())
    times = sorted({(shot.step, shot.epoch) for shot in snapshots})
    if not times or {shot.layer for shot in snapshots} != set(range(len(layers))):
        return None
    if any(len(shot.centres) != heads[shot.layer] for shot in snapshots):
        return None
    centres = torch.full((len(times), len(layers), max(heads), 2), math.nan)
    sharpness = torch.full((len(times), len(layers), max(heads)), math.nan)
    moments = {time: number for number, time in enumerate(times)}
    for shot in snapshots:
        moment, count = moments[shot.step, shot.epoch], heads[shot.layer]
        centres[moment, shot.layer, :count] = torch.from_numpy(shot.centres).float()
        # Σ⁻¹ = 2α of a quadratic head, and its mean over the directions of a generalised one.
        trace = torch.from_numpy(shot.precisions).diagonal(dim1=-2, dim2=-1).sum(-1)
        sharpness[moment, shot.layer, :count] = (trace / 4).float()
    return {
        "epochs": [epoch for _, epoch in times],
        "centres": collected.add(f"{name}/timeline/centres", centres, gaps=True),
        "sharpness": collected.add(f"{name}/timeline/sharpness", sharpness, gaps=True),
        "layers": list(layers),
    }
