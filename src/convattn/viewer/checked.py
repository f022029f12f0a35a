"""Whether a header and tensors from outside make a scene: the form of the header, and every tensor that it names."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from convattn.errors import ArgumentError, must_be
from convattn.fields import read
from convattn.viewer.checked_program import require_program
from convattn.viewer.form import LayerForm, MapsForm, NetworkForm, PositionForm, SceneForm, TimelineForm
from convattn.viewer.lattices import NOWHERE
from convattn.viewer.named import Named, wrong_numbers

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
