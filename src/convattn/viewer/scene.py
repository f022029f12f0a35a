"""A scene: images, networks, the attention of their layers, in one safetensors file that the page opens."""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, final

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from convattn.errors import ArgumentError, CheckpointError, UnsupportedModelError, must_be
from convattn.fields import Range, fits, read
from convattn.files import as_path, write_atomically
from convattn.heads.layout import Layout
from convattn.sealed import tensor_digest

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0, section 2.2, does not allow, and so no SVG that the page saves."""


def readable(text: str) -> str:
    r"""Returns a text with U+FFFD in place of each character that XML forbids.

    Example:
        >>> readable("a\x01b") == "a\ufffdb"
        True
    """
    return _FORBIDDEN.sub("\ufffd", text)


def require_texts(argument: str, texts: Any) -> None:
    """Raises ArgumentError unless something is a list of texts."""
    if isinstance(texts, str) or not isinstance(texts, Iterable) or not all(isinstance(one, str) for one in texts):
        raise ArgumentError(must_be(argument, "a list of texts", texts))


FLOATS = (torch.float16, torch.float32)
"""Floating-point numbers that the page reads."""


@final
class Named:
    """Tensors by name; what is not as it must be raises ArgumentError with the place in the header."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes them."""
        self._tensors = tensors

    def get(
        self, name: object, key: str, dtype: torch.dtype | None, shape: Sequence[int | None] | None = None
    ) -> Tensor:
        """Returns a tensor; None as dtype stands for floating-point numbers, None in a shape for any size."""
        tensor = self._tensors.get(name) if isinstance(name, str) else None
        if tensor is None:
            raise ArgumentError(must_be(key, "a tensor that the file holds", name))
        if tensor.dtype not in (FLOATS if dtype is None else (dtype,)):
            expected = "float16 or float32" if dtype is None else str(dtype).removeprefix("torch.")
            raise ArgumentError(must_be(f"{key} ({name})", expected, str(tensor.dtype).removeprefix("torch.")))
        if shape is not None and not _fits(tensor.shape, shape):
            wanted = "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
            raise ArgumentError(must_be(f"{key} ({name})", f"of shape {wanted}", tuple(tensor.shape)))
        if not tensor.numel():
            raise ArgumentError(must_be(f"{key} ({name})", "of at least one number", tuple(tensor.shape)))
        return tensor

    def floats(self, name: object, key: str, shape: Sequence[int | None] | None = None) -> Tensor:
        """Returns a tensor of floating-point numbers, none of which is nan or +inf."""
        tensor = self.get(name, key, None, shape)
        if wrong_numbers(tensor):
            raise ArgumentError(f"{key} must be numbers, but {name} holds nan or inf")
        return tensor


def wrong_numbers(tensor: Tensor) -> bool:
    """Tells whether floating-point numbers hold nan or +inf; −inf is the score of a key that is never looked at."""
    return bool((tensor.isnan() | tensor.isposinf()).any())


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(one in (None, size) for one, size in zip(wanted, shape, strict=True))


Count = Annotated[int, Range(1)]
Pair = tuple[int, int]
Place = tuple[float, float]
Positive = Annotated[float, Range(0, without_low=True)]
Step = tuple[Positive, Positive]


@dataclass(frozen=True)
class ImageForm:
    """An image; `picture` names a tensor, as all fields do whose text begins with "tensors/"."""

    name: str
    label: str | None
    picture: str
    note: str = ""  # What the picture does not show


@dataclass(frozen=True)
class PlaceForm:
    """Where queries lie on the image."""

    first: Place
    step: Step


@dataclass(frozen=True)
class KeysForm:
    """Where keys lie on the image."""

    grid: Pair
    first: Place
    step: Step


@dataclass(frozen=True)
class QueriesForm:
    """Where queries stand among the keys."""

    first: Pair
    stride: tuple[Count, Count]


@dataclass(frozen=True)
class HeadsForm:
    """Heads of displacements."""

    encoding: str
    centres: str | None
    sharpness: str | None


@dataclass(frozen=True)
class PaddingForm:
    """How keys are made of features."""

    pairs: tuple[Pair, Pair]
    mode: Literal["zeros", "reflect", "replicate", "circular"]
    spread: tuple[Count, Count]


@dataclass(frozen=True)
class PositionForm:
    """Attention by displacement."""

    kind: Literal["position"]
    scores: str | None
    axes: tuple[str, str] | None
    queries: QueriesForm
    heads: HeadsForm
    values: str | None
    bias: str | None
    padding: PaddingForm
    groups: Count


@dataclass(frozen=True)
class MapsForm:
    """Attention that depends on the image."""

    kind: Literal["maps"]
    parts: tuple[Literal["both", "position", "content"], ...]
    position: PositionForm | None
    queries: str
    keys: str
    allowed: str | None
    signed: bool
    stored: bool
    images: tuple[Any, ...]


@dataclass(frozen=True)
class StatisticForm:
    """A number of a head, or two, with standard errors."""

    value: Any
    error: Any


@dataclass(frozen=True)
class LayerForm:
    """A layer."""

    name: str
    kind: str
    pattern: str
    heads: Count
    grid: tuple[Count, Count]
    normalised: bool
    place: PlaceForm
    keys: KeysForm
    prefix: tuple[str, ...]
    sentence: str | None
    statistics: tuple[dict[str, StatisticForm], ...] | None
    attention: PositionForm | MapsForm


@dataclass(frozen=True)
class InputForm:
    """What a network takes."""

    rows: Count
    cols: Count
    mean: tuple[float, ...]
    std: tuple[Positive, ...]


@dataclass(frozen=True)
class TimelineForm:
    """Where heads were during the training."""

    epochs: tuple[float, ...]
    centres: str
    sharpness: str
    layers: tuple[int, ...]


@dataclass(frozen=True)
class NetworkForm:
    """A network."""

    name: str
    title: str
    note: str
    classes: tuple[str, ...] | None
    input: InputForm | None
    program: tuple[dict[str, Any], ...] | None
    layers: tuple[LayerForm, ...]
    timeline: TimelineForm | None


@dataclass(frozen=True)
class SceneForm:
    """The whole header."""

    schema: int
    title: str
    images: tuple[ImageForm, ...]
    networks: tuple[NetworkForm, ...]


NOWHERE = torch.iinfo(torch.int32).min
"""Index of a query that is padding, cropped away afterwards."""

_SAME = 1e-6
"""Positions nearer than this are one; they are small fractions of a cell."""


class Lattice(NamedTuple):
    """Where the keys of a layout lie."""

    grid: tuple[int, int]  # Rows and columns
    first: tuple[float, float]  # Position of cell (0, 0), in steps of the queries' grid
    step: tuple[float, float]  # From one cell to the next
    keys: Int[Tensor, "groups keys"]  # Flat index of each key; −1 − n for prefix token n


def key_lattice(layout: Layout) -> Lattice:
    """Finds the lattice of a layout's keys; positions that are on none raise UnsupportedModelError."""
    placed = layout.keys[:, ~layout.key_prefix]
    axes = [_axis(placed[..., axis].flatten()) for axis in range(2)]
    (rows, first_row, row_step, row), (cols, first_col, col_step, col) = axes
    keys = torch.empty(layout.keys.shape[:2], dtype=torch.int32)
    keys[:, ~layout.key_prefix] = (row * cols + col).view(placed.shape[:2]).int()
    prefix = int(layout.key_prefix.sum())
    keys[:, layout.key_prefix] = -1 - torch.arange(prefix, dtype=torch.int32)
    return Lattice((rows, cols), (first_row, first_col), (row_step, col_step), keys)


def query_indices(layout: Layout) -> Int[Tensor, "groups queries"]:
    """Returns where the queries lie, as the page reads it."""
    return torch.where(layout.queries < NOWHERE, NOWHERE, layout.queries).int()


def _axis(positions: Float[Tensor, " keys"]) -> tuple[int, float, float, Tensor]:
    """Returns the number of cells along an axis, the first, the step, and the cell of each position."""
    if not len(positions):
        return 0, 0.0, 1.0, positions.long()
    places = positions.unique()  # sorted
    gaps = places.diff()
    gaps = gaps[gaps > _SAME]
    step = gaps.min().item() if len(gaps) else 1.0
    first = places[0].item()
    exact = (positions - first) / step
    cells = exact.round()
    if not bool(((exact - cells).abs() < 1e-3).all()):
        raise UnsupportedModelError("its keys are not on a regular lattice, which the viewer needs")
    return int(cells.max()) + 1, first, step, cells.long()


def require_program(program: Sequence[dict[str, Any]], network: NetworkForm, key: str, named: Named) -> None:
    """Raises ArgumentError unless each operation is known and takes as many channels as the one before has made."""
    assert network.input is not None
    channels, kept = len(network.input.mean), []
    for number, operation in enumerate(program):
        place = f"{key}[{number}]"
        match operation.get("op"):
            case "keep":
                kept.append(channels)
            case "add":
                if not kept or kept.pop() != channels:
                    raise ArgumentError(f"{place} adds features that were not put aside, or of another size")
            case "linear":
                channels = _mapped(operation, channels, place, named, axes=2)
            case "convolve":
                channels = _convolved(operation, channels, place, named)
            case "attention":
                channels = _attended(operation, channels, network, place, named)
            case _:
                _require_simple(operation, channels, place, named)


def _require_simple(operation: dict[str, Any], channels: int, place: str, named: Named) -> None:
    """Checks an operation that keeps the channels."""
    numbers = {"maxpool": {"size": Count}, "divide": {"by": Positive}, "normalise": {"eps": float}}
    known = {"gelu", "max", "mean", "scale", *numbers}
    if not isinstance(kind := operation.get("op"), str) or kind not in known:
        raise ArgumentError(must_be(f"{place}.op", "an operation that the page knows", kind))
    for name, wanted in numbers.get(kind, {}).items():
        read(wanted, operation.get(name), f"{place}.{name}")
    for name in ("scale", "shift") if kind in ("scale", "normalise") else ():
        named.floats(operation.get(name), f"{place}.{name}", (channels,))


def _mapped(operation: dict[str, Any], inputs: int, place: str, named: Named, *, axes: int) -> int:
    """Checks a matrix, or a kernel; returns how many channels come out."""
    weight = named.floats(operation.get("weight"), f"{place}.weight", (None, inputs, *[None] * (axes - 2)))
    if operation.get("bias") is not None:
        named.floats(operation["bias"], f"{place}.bias", weight.shape[:1])
    return weight.shape[0]


def _convolved(operation: dict[str, Any], channels: int, place: str, named: Named) -> int:
    pair = tuple[Count, Count]
    for name, wanted in (("stride", pair), ("dilation", pair), ("groups", Count), ("padding", PaddingForm)):
        read(wanted, operation.get(name), f"{place}.{name}")
    groups = operation["groups"]
    outputs = _mapped(operation, channels // groups, place, named, axes=4)
    if channels % groups or outputs % groups:
        raise ArgumentError(must_be(f"{place}.groups", f"a divisor of {channels} and {outputs}", groups))
    return outputs


def _attended(operation: dict[str, Any], channels: int, network: NetworkForm, place: str, named: Named) -> int:
    number = operation.get("layer")
    layers = dict(enumerate(network.layers))
    attention = layers[number].attention if fits(number, int) and number in layers else None
    if not isinstance(attention, PositionForm) or attention.values is None:
        raise ArgumentError(must_be(f"{place}.layer", "the number of a layer that the page computes", number))
    values = named.floats(attention.values, f"{place}.layer")
    if values.shape[2] * attention.groups != channels:
        raise ArgumentError(f"{place} gives {channels} channels to a layer of {values.shape[2] * attention.groups}")
    return values.shape[1]


PADDING = NOWHERE
"""Index of a query or a key that is none."""

_MOST_CELLS = torch.iinfo(torch.int32).max
"""Cells that indices of queries and keys can tell apart."""


def require_scene(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raises ArgumentError unless a page can show a scene; the message names the place in the header or the tensor."""
    scene = read(SceneForm, dict(header))
    named = Named(tensors)
    _require_some(scene.images, "images")
    _require_some(scene.networks, "networks")
    for number, image in enumerate(scene.images):
        named.get(image.picture, f"images[{number}].picture", torch.uint8, (None, None, 3))
    for number, network in enumerate(scene.networks):
        _require_network(network, number, f"networks[{number}]", named)


def _require_some(items: Sequence[object], key: str) -> None:
    if not items:
        raise ArgumentError(must_be(key, "a list of at least one", list(items)))


def _require_network(network: NetworkForm, number: int, key: str, named: Named) -> None:
    _require_some(network.layers, f"{key}.layers")
    if network.input is not None and len(network.input.mean) != len(network.input.std):
        raise ArgumentError(must_be(f"{key}.input.std", "as long as the mean", network.input.std))
    for at, layer in enumerate(network.layers):
        place = f"{key}.layers[{at}]"
        if layer.statistics is not None:
            _require_statistics(layer, place)
        if isinstance(layer.attention, PositionForm):
            _require_position(layer, layer.attention, f"{place}.attention", named)
        else:
            _require_maps(layer, layer.attention, f"{place}.attention", f"maps/{number}/{at}", named)
    if network.program is not None:
        if network.input is None:
            raise ArgumentError(must_be(f"{key}.input", "there, because the network has a program", None))
        require_program(network.program, network, f"{key}.program", named)
    if network.timeline is not None:
        _require_timeline(network, network.timeline, f"{key}.timeline", named)


def _require_statistics(layer: LayerForm, key: str) -> None:
    assert layer.statistics is not None
    if len(layer.statistics) != layer.heads:
        raise ArgumentError(must_be(f"{key}.statistics", f"one for each of {layer.heads} heads", len(layer.statistics)))
    for head, statistics in enumerate(layer.statistics):
        for name, one in statistics.items():
            for what in (one.value, one.error):
                if not all(item is None or _is_number(item) for item in (what if isinstance(what, list) else [what])):
                    raise ArgumentError(must_be(f"{key}.statistics[{head}].{name}", "a number or two", what))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require_position(layer: LayerForm, position: PositionForm, key: str, named: Named) -> None:
    """Checks a layer of displacements: its tables hold each displacement, and its matrices fit each other."""
    heads, stride = layer.heads, position.queries.stride
    size = [
        keys + step * (queries - 1) for keys, step, queries in zip(layer.keys.grid, stride, layer.grid, strict=True)
    ]
    if min(layer.keys.grid) < 1:
        raise ArgumentError(must_be(f"{key}.keys.grid", "at least one key along each axis", layer.keys.grid))
    if (position.scores is None) == (position.axes is None):
        raise ArgumentError(f"{key} must have either scores or axes")
    if position.scores is not None:
        named.floats(position.scores, f"{key}.scores", (heads, *size))
    for axis, name in enumerate(position.axes or ()):
        named.floats(name, f"{key}.axes[{axis}]", (heads, size[axis]))
    if position.heads.centres is not None:
        named.floats(position.heads.centres, f"{key}.heads.centres", (heads, 2))
    if position.heads.sharpness is not None:
        named.floats(position.heads.sharpness, f"{key}.heads.sharpness", (heads,))
    outputs = None
    if position.values is not None:
        outputs = named.floats(position.values, f"{key}.values", (heads, None, None)).shape[1]
    if position.bias is not None:
        named.floats(position.bias, f"{key}.bias", (outputs,))


def _require_maps(layer: LayerForm, maps: MapsForm, key: str, stored: str, named: Named) -> None:
    """Checks a layer with maps: its queries and keys are on their grids, and its maps have their numbers."""
    _require_some(maps.parts, f"{key}.parts")
    queries = named.get(maps.queries, f"{key}.queries", torch.int32, (None, None))
    keys = named.get(maps.keys, f"{key}.keys", torch.int32, (queries.shape[0], None))
    for name, indices, grid in (("queries", queries, layer.grid), ("keys", keys, layer.keys.grid)):
        if min(grid) < 0 or math.prod(grid) > _MOST_CELLS:
            raise ArgumentError(must_be(f"{key}.{name}", f"on a grid of 0 to {_MOST_CELLS} cells", list(grid)))
        inside = (indices >= -len(layer.prefix)) & (indices < math.prod(grid))
        if not bool((inside | (indices == PADDING)).all()):
            raise ArgumentError(f"{key}.{name} must lie on the grid {list(grid)}, but reach beyond it")
    pairs = (queries.shape[0], queries.shape[1], keys.shape[1])
    if maps.allowed is not None:
        named.get(maps.allowed, f"{key}.allowed", torch.uint8, pairs)
    if maps.position is not None:
        _require_position(layer, maps.position, f"{key}.position", named)
    if maps.stored != bool(maps.images):
        raise ArgumentError(must_be(f"{key}.images", "there if maps are stored, and only then", list(maps.images)))
    rows = (pairs[0], layer.heads, pairs[1])
    for part in maps.parts:
        for image in maps.images if part != "position" else ():
            place = f"{stored}/{part}/{image}"
            named.get(f"{place}/levels", f"{key}.images", torch.uint8, (*rows, pairs[2]))
            for kind in ("scales", *(["lows"] if maps.signed else [])):
                named.floats(f"{place}/{kind}", f"{key}.images", rows)


def _require_timeline(network: NetworkForm, timeline: TimelineForm, key: str, named: Named) -> None:
    layers = timeline.layers
    if not layers or not all(0 <= layer < len(network.layers) for layer in layers):
        raise ArgumentError(must_be(f"{key}.layers", f"numbers of {len(network.layers)} layers", list(layers)))
    most = max(network.layers[layer].heads for layer in layers)
    shape = (len(timeline.epochs), len(layers), most)
    # A layer with fewer heads than another is filled up with nan.
    for name, one, wanted in (("centres", timeline.centres, (*shape, 2)), ("sharpness", timeline.sharpness, shape)):
        tensor = named.get(one, f"{key}.{name}", None, wanted)
        for at, layer in enumerate(layers):
            if wrong_numbers(tensor[:, at, : network.layers[layer].heads]):
                raise ArgumentError(f"{key}.{name} must be numbers, but {one} holds nan or inf")


SCHEMA = 1
"""Version of the format."""

_KEY, _DIGEST = "convattn.scene", "sha256"
_LISTS = ("images", "networks")


@dataclass(frozen=True, eq=False)
class Scene:
    """What the interactive page shows.

    Saved, it is one safetensors file: the header is JSON under "convattn.scene" in its metadata, and names the tensors.
    `docs/viewer.md` describes the format.

    Attributes:
        header: Title, images, networks and their layers, as JSON types.
        tensors: Pictures, scores, weights and maps, by the names that the header gives them.

    Example:
        >>> import tempfile
        >>> from convattn import AttentionNet
        >>> from convattn.viewer import Exhibit, build_scene
        >>> network = AttentionNet(width=8, depth=1, heads=4, ffn=8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "scene.safetensors")
        ...     build_scene(Exhibit(network, torch.zeros(1, 3, 8, 8)), title="one network").save(file)
        ...     Scene.load(file).header["title"]
        'one network'
    """

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    def to_bytes(self) -> bytes:
        """Returns the file's content."""
        # Inside the header: two entries of metadata would come in either order.
        header = {**self.header, _DIGEST: _digest(self.header, self.tensors)}
        return save(self.tensors, {_KEY: json.dumps(header, allow_nan=False)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the scene; the file is there whole or not at all.

        Args:
            path: File to write; its folder must exist.

        Raises:
            WriteError: It cannot be written.
            ArgumentError: There is no such folder.
        """
        write_atomically(as_path(path, "path"), self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Scene":
        """Loads a scene.

        Args:
            path: A file that `save` wrote.

        Returns:
            The scene.

        Raises:
            CheckpointError: The file is missing or damaged, holds no scene, or one of another version. The message says
                where.
        """
        path = as_path(path, "path")
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read a scene from {path}: {error}") from None
        return cls(_read_header(path, metadata, tensors), tensors)

    @property
    def bytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def _read_header(path: Path, metadata: Mapping[str, str], tensors: dict[str, Tensor]) -> dict[str, Any]:
    told = metadata.get(_KEY)
    if told is None:
        raise CheckpointError(f"{path} holds no scene")
    try:
        header = json.loads(told, parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: its header is no JSON ({error})") from None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        found = header.get("schema") if isinstance(header, dict) else None
        raise CheckpointError(f"{path} must be a scene of version {SCHEMA}, but is of {found!r}")
    if not all(isinstance(header.get(name), list) for name in _LISTS):
        raise CheckpointError(f"{path} is damaged: its header has no {' and '.join(_LISTS)}")
    said = header.pop(_DIGEST, None)
    try:
        missing = sorted(name for name in _names(header) if name not in tensors)
        if missing:
            raise CheckpointError(f"{path} is damaged: it does not hold {', '.join(missing[:3])}")
        require_scene(header, tensors)
    except (ArgumentError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    # The form comes first: its messages say where.
    if said is not None and said != _digest(header, tensors):
        raise CheckpointError(f"{path} is damaged: what it holds is not what was saved")
    return header


def _number(text: str) -> float:
    """Reads a number of a header; nan and infinity, which Python's JSON has, and what is as large, raise ValueError."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number of JSON")
    return number


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of a header and of every tensor, whatever their order in the file."""
    digest = hashlib.sha256(json.dumps(header, allow_nan=False).encode())
    for name in sorted(tensors):
        digest.update(tensor_digest(name, tensors[name]).encode())
    return digest.hexdigest()


def _names(value: Any) -> Iterator[str]:
    """Yields the names of tensors in a header: they are the texts that begin with "tensors/"."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _names(item)
    elif isinstance(value, list):
        for item in value:
            yield from _names(item)
    elif isinstance(value, str) and value.startswith("tensors/"):
        yield value


class SceneSizeError(ArgumentError):
    """A scene would be larger than it may be.

    Attributes:
        size: Bytes that it would have at least.
        largest: Bytes that it may have.
    """

    def __init__(self, size: int, largest: int) -> None:
        """Takes both numbers of bytes."""
        self.size, self.largest = size, largest
        super().__init__(
            f"the scene would be {_megabytes(size)} or more, and may be {_megabytes(largest)}: take fewer images, or"
            " name the layers to show"
        )

    def __reduce__(self) -> tuple[type, tuple[int, int]]:
        """Lets the error cross from one process to another."""
        return type(self), (self.size, self.largest)


def _megabytes(count: int) -> str:
    return f"{count / 2**20:.0f} MB"


class Collected:
    """Tensors of a scene while it is made; their size is bounded."""

    def __init__(self, largest: int) -> None:
        """Starts with none; `largest` is the size in bytes that they may have together."""
        self.tensors: dict[str, Tensor] = {}
        self._largest = self._left = largest

    def add(self, name: str, tensor: Tensor, *, gaps: bool = False) -> str:
        """Adds a tensor and returns the name that the header gives it; a scene that is too large raises SceneSizeError.

        `gaps` allows nan.

        Floating-point numbers become float16 if that changes none, else float32. nan and inf raise ArgumentError: with
        them a page would show something else than the network computes.
        """
        kept = _compact(tensor.detach().cpu()).contiguous()
        if kept.is_floating_point() and not gaps and wrong_numbers(kept):
            raise ArgumentError(f"the network must hold finite numbers, but {name} of its scene has nan or inf")
        name = f"tensors/{name}"
        self.reserve(kept.nbytes)
        self.tensors[name] = kept
        return name

    def reserve(self, count: int) -> None:
        """Takes bytes away from those that are left; if there are too few, it raises SceneSizeError."""
        self._left -= count
        if self._left < 0:
            raise SceneSizeError(self._largest - self._left, self._largest)


def _compact(tensor: Tensor) -> Tensor:
    """Returns a tensor of its own memory, as narrow as it can be without loss."""
    if not tensor.is_floating_point():
        return tensor.clone()
    wide = tensor.float()
    narrow = wide.half()
    return narrow if torch.equal(narrow.float(), wide) else wide.clone()
