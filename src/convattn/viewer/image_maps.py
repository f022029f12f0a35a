"""Attention that depends on the image: read layer by layer, encoded in bytes, with the lattice of its keys."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from convattn.errors import ArgumentError, UnknownNameError, UnsupportedModelError
from convattn.functional import attention_weights, pad_keys
from convattn.heads.catalogue import attention_layers
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch
from convattn.layers import RelativeAttention
from convattn.viewer.lattice import key_lattice
from convattn.viewer.scene import SceneTensors


class Rows(NamedTuple):
    """Rows of weights in bytes: weight = low + level / 255 · scale."""

    levels: UInt8[Tensor, "groups heads queries keys"]
    scales: Float[Tensor, "groups heads queries"]
    lows: Float[Tensor, "groups heads queries"]  # At most 0

    @property
    def bytes(self) -> int:
        """Size of levels and scales."""
        return self.levels.nbytes + self.scales.nbytes


def encode_rows(weights: Float[Tensor, "*rows keys"]) -> Rows:
    """Encodes rows of weights; the error of a weight is at most 1/510 of the row's range. NaN counts as 0."""
    weights = torch.nan_to_num(weights.float())
    lows = weights.amin(-1).clamp(max=0)
    scales = weights.amax(-1) - lows
    unit = torch.where(scales > 0, scales, 1)[..., None]
    levels = ((weights - lows[..., None]) / unit * 255).round().to(torch.uint8)
    return Rows(levels, scales, lows)


class LayerCall(NamedTuple):
    """One call of an attention layer. The tensors are valid during the callback."""

    name: str  # Name of the layer; "(call 2)" is added where it runs again
    module: nn.Module
    size: tuple[
        int, ...
    ]  # Rows and columns of the input of a layer of this library; empty for others
    attention: (
        AttentionCall | None
    )  # What was read; None for a layer that attends by displacement alone
    parts: Mapping[
        str, Float[Tensor, "groups heads queries keys"]
    ]  # Weights by part: "both", and "content" if known


def is_positional(module: nn.Module) -> bool:
    """Tells whether a layer attends by displacement alone, so that it needs no maps."""
    return isinstance(module, RelativeAttention) and module.content is None


def read_layers(
    network: nn.Module,
    image: Float[Tensor, "1 *sizes"],
    callback: Callable[[LayerCall], None],
    *,
    layers: Sequence[str] | None = None,
) -> None:
    """Runs a network on one image and calls back for each call of an attention layer, in the order in which they run.

    The weights of layers that attend by displacement alone are not computed: those of a convolution at 224 × 224 pixels
    would fill the memory, and the page computes them. Without names of `layers` all are read, and a network in which
    another module attends is refused.
    """
    known = [layer.name for layer in attention_layers(network)]
    for name in layers or ():
        if name not in known:
            raise UnknownNameError("layer", name, known)
    own = {
        module: name
        for name, module in network.named_modules()
        if isinstance(module, RelativeAttention)
    }
    for module, name in own.items():
        if layers is None or name in layers:
            require_image_grid(name, module.dims)
    positional = [name for module, name in own.items() if is_positional(module) and name in known]
    inputs: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()

    def numbered(name: str) -> str:
        calls[name] += 1
        return name if calls[name] == 1 else f"{name} (call {calls[name]})"

    def note_input(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(layer, RelativeAttention)
        name = own[layer]
        if layers is not None and name not in layers:
            return
        x = layer.batch_of(*args, **kwargs)
        if layer.content is None:
            callback(LayerCall(numbered(name), layer, tuple(x.shape[2:]), None, {}))
        else:
            inputs[name] = x

    def read(call: AttentionCall) -> None:
        layer, size = network.get_submodule(call.name), ()
        require_image_grid(call.name, len(call.layout.grid))
        parts = {"both": call.weights[0]}
        if isinstance(layer, RelativeAttention):
            x = inputs.pop(call.name)
            parts["content"], size = _content_weights(layer, x), tuple(x.shape[2:])
        callback(LayerCall(numbered(call.name), layer, size, call, parts))

    with ExitStack() as hooks:
        for module in own:
            hooks.callback(module.register_forward_pre_hook(note_input, with_kwargs=True).remove)
        watch(network, image, read, layers=layers, without=positional or None)
    if not calls:
        names = ", ".join(known if layers is None else layers)
        raise ArgumentError(f"none of the layers {names} runs when the network sees an image")


def _content_weights(
    layer: RelativeAttention, x: Tensor
) -> Float[Tensor, "groups heads queries keys"]:
    """Returns the attention of the content scores alone, on one image."""
    assert layer.content is not None
    scores = layer.content(
        pad_keys(x, layer.geometry), layer.geometry.axes(x.shape[2:]), layer.encoding
    )
    return attention_weights(scores)


def require_image_grid(name: str, axes: int) -> None:
    """Raises UnsupportedModelError unless a grid has rows and columns."""
    if axes != 2:
        found = "a sequence" if axes == 1 else f"a grid of {axes} axes"
        raise UnsupportedModelError(
            f"{name} attends on {found}, and the viewer shows images: rows and columns; name other layers to show"
        )


PADDING = torch.iinfo(torch.int32).min
"""Index of a query that is padding, cropped away afterwards."""


class LayerMaps:
    """The maps of one layer while images pass: rows in bytes of each, and the sum of the weights of all."""

    def __init__(self, call: LayerCall) -> None:
        """Starts without maps; keys on no regular lattice raise UnsupportedModelError."""
        assert call.attention is not None
        self.layout, self.normalised = call.attention.layout, call.attention.normalised
        self.heads, self.parts = call.attention.weights.shape[2], list(call.parts)
        try:
            self.lattice = key_lattice(self.layout)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{call.name}: {error}") from None
        self._rows: dict[tuple[str, int | str], Rows] = {}  # By part and image
        self._sums: dict[str, Tensor] = {}
        self._images = 0

    def add(self, parts: Mapping[str, Tensor], image: int) -> int:
        """Adds the weights on an image; returns the bytes that they take."""
        taken = 0
        for part, weights in parts.items():
            self._rows[part, image] = rows = encode_rows(weights.cpu())
            taken += rows.bytes
            self._sums[part] = weights.float().cpu() + self._sums.get(part, 0)
        self._images += 1
        return taken

    def describe(
        self, key: str, number: str, position: dict[str, Any] | None, collected: SceneTensors
    ) -> dict[str, Any]:
        """Describes the attention, and moves the maps into the scene, with the mean over several images.

        `key` begins the names of the tensors; `number`, "network/layer", is in those of the maps.
        """
        if self._images > 1:
            for part, total in self._sums.items():
                self._rows[part, "mean"] = rows = encode_rows(total / self._images)
                collected.reserve(rows.bytes)
        signed = any(bool(rows.lows.any()) for rows in self._rows.values())
        for (part, image), rows in self._rows.items():
            for kind, tensor in rows._asdict().items():
                if signed or kind != "lows":
                    collected.tensors[f"maps/{number}/{part}/{image}/{kind}"] = tensor.contiguous()
        images = list(dict.fromkeys(image for _, image in self._rows))
        self._rows.clear()
        allowed, queries = self.layout.allowed, self.layout.queries
        return {
            "kind": "maps",
            "parts": [self.parts[0], *(["position"] if position else []), *self.parts[1:]],
            "position": position,
            "queries": collected.add(
                f"{key}/queries", torch.where(queries < PADDING, PADDING, queries).int()
            ),
            "keys": collected.add(f"{key}/keys", self.lattice.keys),
            "allowed": None
            if allowed is None
            else collected.add(f"{key}/allowed", allowed.to(torch.uint8)),
            "signed": signed,
            "images": images,
        }
