"""Networks and images → scene."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from convattn.convert.classes import full_name
from convattn.encodings import AxisAdditiveEncoding, Encoding, GeneralizedQuadratic, Quadratic, Shift
from convattn.encodings.registry import ENCODINGS
from convattn.errors import (
    ArgumentError,
    ConvAttnError,
    ShapeError,
    UnknownNameError,
    UnsupportedModelError,
    must_be,
    must_be_a,
    must_fit,
)
from convattn.functional import attention_weights, pad_keys
from convattn.grid import Axis, Geometry
from convattn.heads.catalogue import attention_layers
from convattn.heads.head_report import HEAD_NUMBERS, Estimate, HeadReport, HeadStatistics
from convattn.heads.head_snapshots import HeadSnapshot
from convattn.heads.layout import AttentionCall, Layout
from convattn.heads.reading import as_it_was, watch
from convattn.layers import RelativeAttention, RelativeAttention2d
from convattn.layers.block import MixingBlock
from convattn.models import AttentionNet, SpeedNet
from convattn.viewer.scene import SCHEMA, Collected, Lattice, Scene, key_lattice, query_indices, readable, require_texts


@dataclass(frozen=True)
class Place:
    """A lattice on the image: its cell (i, j) has its centre at first + step · (i, j)."""

    first: tuple[float, float]  # Centre of cell (0, 0)
    step: tuple[float, float]  # From one cell to the next

    @classmethod
    def pixels(cls) -> "Place":
        """Returns the lattice of the image's own pixels."""
        return cls((0.0, 0.0), (1.0, 1.0))

    @classmethod
    def covering(cls, image: Sequence[int], grid: Sequence[int]) -> "Place":
        """Returns the lattice whose cells divide the image evenly, as patches do."""
        step = tuple(size / cells for size, cells in zip(image, grid, strict=True))
        return cls(_pair((one - 1) / 2 for one in step), _pair(step))

    def among(self, first: Sequence[float], step: Sequence[float]) -> "Place":
        """Returns the lattice whose cell (i, j) is at first + step · (i, j) of this one's cells."""
        at = (a + b * c for a, b, c in zip(self.first, self.step, first, strict=True))
        return Place(_pair(at), _pair(b * c for b, c in zip(self.step, step, strict=True)))

    def scaled(self, factor: Sequence[float]) -> "Place":
        """Returns the lattice on the same image with `factor` times as many rows and columns of pixels."""
        first = ((a + 0.5) * c - 0.5 for a, c in zip(self.first, factor, strict=True))
        return Place(_pair(first), _pair(b * c for b, c in zip(self.step, factor, strict=True)))

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON types."""
        return {"first": list(self.first), "step": list(self.step)}


def key_place(features: Place, geometry: Geometry) -> Place:
    """Returns where the keys of a layer lie, padded ones included, given where its features lie."""
    spread = geometry.input_dilation
    before = [pair[0] for pair in geometry.padding]
    return features.among([-n / s for n, s in zip(before, spread, strict=True)], [1 / s for s in spread])


def query_place(keys: Place, axes: Sequence[Axis]) -> Place:
    """Returns where the queries of a layer lie, given where its keys lie."""
    return keys.among([axis.queries.start for axis in axes], [axis.queries.step for axis in axes])


def _pair(numbers: object) -> tuple[float, float]:
    first, second = numbers  # type: ignore[misc]
    return float(first), float(second)


one_run = threading.RLock()
"""Held while a network runs with hooks: a network that two threads ran at once would mix up what they read."""

_LEVELS = 255
BOTH, CONTENT = "both", "content"
"""Parts of a layer's attention that have maps."""


class Rows(NamedTuple):
    """Rows of weights in bytes: weight = low + level / 255 · scale."""

    levels: UInt8[Tensor, "groups heads queries keys"]
    scales: Float[Tensor, "groups heads queries"]
    lows: Float[Tensor, "groups heads queries"]  # at most 0

    @property
    def bytes(self) -> int:
        """Size of levels and scales."""
        return self.levels.nbytes + self.scales.nbytes


class ReadMaps(NamedTuple):
    """The attention of one layer on one image, for the length of a callback."""

    name: str  # Name of the layer; "(call 2)" is added where it runs again
    call: AttentionCall  # What was read
    parts: Mapping[str, Float[Tensor, "groups heads queries keys"]]  # Weights by part: "both", and "content" if known


def encode_rows(weights: Float[Tensor, "*rows keys"]) -> Rows:
    """Encodes rows of weights; the error of a weight is at most 1/510 of the row's range. NaN counts as 0."""
    weights = torch.nan_to_num(weights.float())
    lows = weights.amin(-1).clamp(max=0)
    scales = weights.amax(-1) - lows
    unit = torch.where(scales > 0, scales, 1)[..., None]
    levels = ((weights - lows[..., None]) / unit * _LEVELS).round().to(torch.uint8)
    return Rows(levels, scales, lows)


def read_maps(
    network: nn.Module,
    image: Float[Tensor, "1 *sizes"],
    callback: Callable[[ReadMaps], None],
    *,
    layers: Sequence[str] | None = None,
) -> None:
    """Runs a network on one image and hands out the attention of each layer that can be read and depends on it.

    Layers of this library that attend by displacement alone have no maps: those of a convolution at 224 × 224 pixels
    would fill the memory.

    Args:
        network: The network.
        image: A batch of one prepared image.
        callback: Called for each layer in the order in which they run.
        layers: Names of the layers; None reads all, and raises if another module attends.
    """
    inputs: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()

    def read(call: AttentionCall) -> None:
        layer = network.get_submodule(call.name)
        parts = {BOTH: call.weights[0]}
        if isinstance(layer, RelativeAttention) and layer.content is not None:
            parts[CONTENT] = _content_weights(layer, inputs.pop(call.name))
        calls[call.name] += 1
        callback(ReadMaps(numbered(call.name, calls[call.name]), call, parts))

    positional = [layer.name for layer in attention_layers(network) if is_positional(network.get_submodule(layer.name))]
    with one_run, ExitStack() as hooks:
        for name, module in network.named_modules():
            if isinstance(module, RelativeAttention) and module.content is not None:
                hooks.callback(module.register_forward_pre_hook(_noting(inputs, name), with_kwargs=True).remove)
        watch(network, image, read, layers=layers, without=positional or None)


def is_positional(module: nn.Module) -> bool:
    """Tells whether a layer attends by displacement alone, so that it needs no maps."""
    return isinstance(module, RelativeAttention) and module.content is None


def numbered(name: str, call: int) -> str:
    """Returns the name of a layer's call."""
    return name if call == 1 else f"{name} (call {call})"


def _noting(inputs: dict[str, Tensor], name: str) -> Callable[..., None]:
    def hook(layer: RelativeAttention, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        inputs[name] = layer.batch_of(*given, **named)

    return hook


def _content_weights(layer: RelativeAttention, x: Tensor) -> Float[Tensor, "groups heads queries keys"]:
    """Computes the attention of the content scores alone, on one image."""
    assert layer.content is not None
    scores = layer.content(pad_keys(x, layer.geometry), layer.geometry.axes(x.shape[2:]), layer.encoding)
    return attention_weights(scores)


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


class MetLayer(NamedTuple):
    """One call of an attention layer."""

    name: str  # Name of the module; "(call 2)" is added where it runs again
    module: nn.Module
    size: tuple[int, ...]  # Rows and columns of what a layer of this library was given; empty of others

    @property
    def positional(self) -> bool:
        """Whether it attends by displacement alone, so that it needs no maps."""
        return is_positional(self.module)


def met_layers(network: nn.Module, image: Tensor, layers: Sequence[str] | None) -> list[MetLayer]:
    """Runs a network on one image, and returns the calls of the chosen layers in the order in which they run.

    A name that is no layer raises UnknownNameError; a network without attention UnsupportedModelError.
    """
    found = {layer.name: layer for layer in attention_layers(network)}
    for name in layers or ():
        if name not in found:
            raise UnknownNameError("layer", name, found)
    chosen = {
        network.get_submodule(name): name
        for name, layer in found.items()
        if (layer.refused is None if layers is None else name in layers)
    }
    met: list[MetLayer] = []
    calls: Counter[str] = Counter()

    def note(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        name = chosen[module]
        calls[name] += 1
        size: tuple[int, ...] = ()
        if isinstance(module, RelativeAttention):
            require_image_grid(name, module.dims)
            size = tuple(module.batch_of(*given, **named).shape[2:])
        met.append(MetLayer(numbered(name, calls[name]), module, size))

    with one_run, ExitStack() as hooks:
        for module in chosen:
            hooks.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        hooks.enter_context(as_it_was(network))
        _run(network, image)
    if not met:
        raise ArgumentError(f"none of the layers {', '.join(chosen.values())} runs when the network sees an image")
    return met


def _run(network: Callable[[Tensor], Any], image: Tensor) -> None:
    try:
        network(image)
    except ConvAttnError:
        raise
    except Exception as error:  # a foreign network may fail in any way
        raise ArgumentError(must_fit(f"one of shape {tuple(image.shape)}", error)) from error


@torch.no_grad()
def describe_position(
    layer: RelativeAttention, axes: tuple[Axis, ...], name: str, collected: Collected, *, values: bool = True
) -> dict[str, Any]:
    """Describes the attention of a layer's displacements; `values` tells whether the page computes its output, too.

    The scores are those of every displacement on the grid, in float32, from the lowest to the highest along each axis;
    of an encoding that adds up over the axes, those of each axis, whose sum the page takes.
    """
    encoding, geometry = layer.encoding, layer.geometry
    device, add = next(layer.values.parameters()).device, collected.add
    additive = isinstance(encoding, AxisAdditiveEncoding)
    tables = encoding.axis_tables(axes, device=device) if additive else None
    described: dict[str, Any] = {
        "kind": "position",
        "scores": add(f"{name}/scores", encoding.table(axes, device=device)) if tables is None else None,
        "axes": None if tables is None else [add(f"{name}/axes/{n}", table) for n, table in enumerate(tables)],
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


def _describe_heads(encoding: Encoding, name: str, collected: Collected) -> dict[str, Any]:
    centres = sharpness = None
    if isinstance(encoding, Quadratic | GeneralizedQuadratic):
        centres = encoding.centres
    elif isinstance(encoding, Shift):
        centres = torch.tensor(encoding.displacements, dtype=torch.float32)
    if isinstance(encoding, Quadratic):
        sharpness = encoding.root_sharpness**2 / 2
    return {
        "encoding": encoding_name(encoding),
        "centres": None if centres is None else collected.add(f"{name}/centres", centres),
        "sharpness": None if sharpness is None else collected.add(f"{name}/sharpness", sharpness),
    }


def encoding_name(encoding: Encoding) -> str:
    """Returns the name by which an encoding is built, or of its class if it has none."""
    kind = type(encoding)
    return next((name for name, known in ENCODINGS.items() if known is kind), kind.__name__)


Operation = dict[str, Any]


class Program:
    """The operations of a network, from the picture to the class scores, and where its layers lie on the image."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        """Starts with none; `numbers` are those of the attention layers by name."""
        self.places: dict[str, Place] = {}  # where the features lie that an attention layer takes
        self._operations: list[tuple[Operation, dict[str, Tensor | None]]] = []
        self._numbers, self._place = numbers, Place.pixels()

    def collect(self, name: str, collected: Collected) -> list[Operation]:
        """Returns the operations, with the names under which their tensors are now collected."""
        made = []
        for number, (operation, tensors) in enumerate(self._operations):
            names = {
                key: None if tensor is None else collected.add(f"{name}/program/{number}/{key}", tensor)
                for key, tensor in tensors.items()
            }
            made.append({**operation, **names})
        return made

    def add(self, op: str, *, tensors: Mapping[str, Tensor | None] | None = None, **options: Any) -> None:
        """Adds an operation."""
        self._operations.append(({"op": op, **options}, dict(tensors or {})))

    def mix(self, name: str, module: nn.Module) -> None:
        """Adds a layer that mixes pixels: attention, or a convolution."""
        if isinstance(module, RelativeAttention2d):
            self.places[name] = self._place
            self.add("attention", layer=self._numbers[name])
        elif type(module) is nn.Conv2d and not isinstance(module.padding, str):
            mode = module.padding_mode
            pairs = [[size, size] for size in module.padding]
            self.add(
                "convolve",
                tensors={"weight": module.weight, "bias": module.bias},
                stride=list(module.stride),
                dilation=list(module.dilation),
                groups=module.groups,
                padding={"pairs": pairs, "mode": mode, "spread": [1, 1]},
            )
        else:
            raise _NotKnownError(type(module))
        if not _keeps_grid(module):
            raise _NotKnownError(type(module))

    def patches(self, weight: Tensor, bias: Tensor | None, *, side: int, step: int) -> None:
        """Adds a linear map of square patches; `weight` is (outputs, channels, side, side)."""
        none = {"pairs": [[0, 0], [0, 0]], "mode": "zeros", "spread": [1, 1]}
        options = {"stride": [step, step], "dilation": [1, 1], "groups": 1, "padding": none}
        self.add("convolve", tensors={"weight": weight, "bias": bias}, **options)
        self._place = self._place.among([(side - 1) / 2] * 2, [step] * 2)

    def halve(self) -> None:
        """Adds the maximum of squares of 2 x 2 pixels."""
        self.add("maxpool", size=2)
        self._place = self._place.among([0.5] * 2, [2] * 2)

    def normalise_channels(self, norm: nn.Module) -> None:
        """Adds a batch normalisation with its running statistics; in float64, then rounded once."""
        if isinstance(norm, nn.Identity):
            return
        if type(norm) is not nn.BatchNorm2d or norm.running_mean is None or norm.running_var is None:
            raise _NotKnownError(type(norm))
        weight, bias = (None if item is None else item.detach().double() for item in (norm.weight, norm.bias))
        scale = (1.0 if weight is None else weight) / (norm.running_var.double() + norm.eps).sqrt()
        shift = (0.0 if bias is None else bias) - norm.running_mean.double() * scale
        self.add("scale", tensors={"scale": scale, "shift": shift})

    def linear(self, layer: nn.Module) -> None:
        """Adds a linear map of each pixel."""
        if isinstance(layer, nn.Identity):
            return
        if type(layer) is not nn.Linear:
            raise _NotKnownError(type(layer))
        self.add("linear", tensors={"weight": layer.weight, "bias": layer.bias})

    def normalise_pixels(self, norm: nn.LayerNorm) -> None:
        """Adds a layer normalisation of each pixel's channels."""
        self.add("normalise", tensors={"scale": norm.weight, "shift": norm.bias}, eps=norm.eps)


class _NotKnownError(Exception):
    """A part is of a class that the page cannot run."""


@torch.no_grad()
def make_program(network: nn.Module, numbers: Mapping[str, int]) -> Program | None:
    """Writes a network down as operations.

    `numbers` are those of the attention layers of displacements by name. Networks of other classes, and those with
    other parts, give None.
    """
    makers: dict[type, Callable[[Any, Program], None]] = {SpeedNet: _speed_net, AttentionNet: _attention_net}
    make = makers.get(type(network))
    mixing = {key for key, part in network.named_modules() if isinstance(part, RelativeAttention2d)}
    if make is None or mixing != set(numbers):
        return None
    program = Program(numbers)
    try:
        make(network, program)
    except _NotKnownError:
        return None
    return program


def _speed_net(network: SpeedNet, program: Program) -> None:
    stem = network.stem
    program.patches(stem.weight.unflatten(1, (-1, 2, 2)), stem.bias, side=2, step=1)
    program.add("gelu")
    for number, stage in enumerate(network.stages):
        program.mix(f"stages.{number}.first", stage.get_submodule("first"))
        program.halve()
        program.normalise_channels(stage.get_submodule("first_norm"))
        program.add("gelu")
        program.mix(f"stages.{number}.second", stage.get_submodule("second"))
        program.normalise_channels(stage.get_submodule("second_norm"))
        program.add("gelu")
    program.add("max")
    program.linear(network.head)
    program.add("divide", by=9)


def _attention_net(network: AttentionNet, program: Program) -> None:
    side = network.patch
    if type(network.embed) is not nn.Linear:
        raise _NotKnownError(type(network.embed))
    weight = network.embed.weight.unflatten(1, (-1, side, side))
    program.patches(weight, network.embed.bias, side=side, step=side)
    for number, block in enumerate(network.blocks):
        assert isinstance(block, MixingBlock)
        post = block.norm == "post"
        program.add("keep")
        if not post:
            program.normalise_pixels(block.mixer_norm)
        program.mix(f"blocks.{number}.mixer", block.mixer)
        program.linear(block.dense)
        program.add("add")
        if post:
            program.normalise_pixels(block.mixer_norm)
        program.add("keep")
        if not post:
            program.normalise_pixels(block.feedforward_norm)
        program.linear(block.expand)
        program.add("gelu")
        program.linear(block.contract)
        program.add("add")
        if post:
            program.normalise_pixels(block.feedforward_norm)
    program.add("mean")
    program.linear(network.head)


def _keeps_grid(module: nn.Module) -> bool:
    """Tells whether queries are the pixels of the image, as all layers of these networks have it."""
    if isinstance(module, RelativeAttention2d):
        geometry = module.geometry
        pairs = zip(geometry.padding, geometry.anchor, strict=True)
        same = all(before == anchor for (before, _), anchor in pairs)
        return same and set(geometry.stride) == set(geometry.input_dilation) == {1}
    assert isinstance(module, nn.Conv2d)
    centred = [d * (k - 1) // 2 for k, d in zip(module.kernel_size, module.dilation, strict=True)]
    return list(module.padding) == centred and set(module.stride) == {1}


def describe_statistics(report: HeadReport | None, name: str, heads: int) -> dict[str, Any]:
    """Returns the sentence of a layer and the numbers of its heads; None where the report does not have it."""
    found = next((layer for layer in report.layers if layer.name == name), None) if report else None
    if found is None or len(found.heads) != heads:
        return {"sentence": None, "statistics": None}
    return {"sentence": found.sentence, "statistics": [_head(head) for head in found.heads]}


def _head(head: HeadStatistics) -> dict[str, Any]:
    numbers = {name: _estimate(getattr(head, name)) for name in HEAD_NUMBERS}
    shift = [_estimate(one) for one in head.shift]
    return {
        "shift": {"value": [one["value"] for one in shift], "error": [one["error"] for one in shift]},
        "hard_shift": {"value": [_finite(one) for one in head.hard_shift], "error": None},
        **numbers,
    }


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {"value": _finite(estimate.value), "error": _finite(estimate.error)}


def _finite(value: float) -> float | None:
    """Returns a number that JSON can hold."""
    return value if math.isfinite(value) else None


def describe_timeline(
    snapshots: Sequence[HeadSnapshot], layers: Sequence[int], heads: Sequence[int], name: str, collected: Collected
) -> dict[str, Any] | None:
    """Describes where quadratic heads were during training; None where snapshots are none, or of other layers.

    `layers` are the numbers of the layers with such heads, `heads` how many each has. A layer with fewer heads than
    another is filled up with nan.
    """
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


_ROUNDING = 1 / 510
"""What a picture in bytes may be off."""

_CLIPPED = (
    "{:.1%} of this image's numbers lie outside 0 to 1 before normalisation (from {:.3g} to {:.3g}). The picture shows"
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
        std: What they were divided by then; () if unknown.
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
            raise ShapeError(must_be("images", "of shape (images, channels, rows, cols), with at least one", found))
        if images.is_meta:
            raise ArgumentError(must_be("images", "on a device that holds numbers", images.device))
        if not images.is_floating_point() or not bool(torch.isfinite(images).all()):
            raise ArgumentError("images must be finite floating-point numbers")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), images.shape[1]))
        if bool(self.mean) != bool(self.std) or not all(value > 0 for value in self.std):
            raise ArgumentError(must_be("std", "positive numbers, given together with mean", self.std))
        require_texts("classes", self.classes)
        for name in ("name", "title", "note"):
            if not isinstance(given := getattr(self, name), str):
                raise ArgumentError(must_be(name, "text", given))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the images."""
        return self.images.shape[2], self.images.shape[3]

    @property
    def shows_pictures(self) -> bool:
        """Whether a picture says all of an image: mean and std are known, and the channels are grey or colours."""
        return bool(self.mean) and self.images.shape[1] in (1, 3)

    def pictures(self) -> UInt8[Tensor, "images rows cols 3"]:
        """Returns the images as one sees them; where mean and std are unknown, each between its extremes."""
        images = self._before_normalisation()
        if not self.mean:
            low, high = (images.flatten(1).aminmax(dim=1)[n].view(-1, 1, 1, 1) for n in (0, 1))
            images = (images - low) / torch.where(high > low, high - low, 1)
        if images.shape[1] not in (1, 3):
            images = images.mean(1, keepdim=True)
        return (images.clamp(0, 1) * 255).round().to(torch.uint8).expand(-1, 3, -1, -1).movedim(1, -1).contiguous()

    def notes(self) -> list[str]:
        """Says of each image what its picture does not show: numbers outside 0 to 1; "" where it shows all."""
        if not self.mean:
            return [""] * len(self.images)
        images = self._before_normalisation().flatten(1)
        outside = (images < -_ROUNDING) | (images > 1 + _ROUNDING)
        extremes = zip(outside.double().mean(1).tolist(), *(images.aminmax(dim=1)), strict=True)
        return [_CLIPPED.format(share, low.item(), high.item()) if share else "" for share, low, high in extremes]

    def _before_normalisation(self) -> Tensor:
        """Returns the images with the mean and deviation put back, where they are known."""
        images = self.images.detach().cpu().double()
        if not self.mean:
            return images
        mean, std = (torch.tensor(value, dtype=torch.float64).view(-1, 1, 1) for value in (self.mean, self.std))
        return images * std + mean


def _numbers(name: str, given: Any, channels: int) -> tuple[float, ...]:
    """Returns a list or a tensor of numbers as floats."""
    try:
        numbers = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        numbers = None
    if numbers is None or numbers.shape not in ((0,), (channels,)) or not bool(numbers.isfinite().all()):
        raise ArgumentError(must_be(name, f"one finite number for each of {channels} channels", given))
    return tuple(numbers.tolist())


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
