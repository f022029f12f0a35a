"""Attention that depends on the image: read layer by layer, encoded in bytes, with the lattice of its keys."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.functional import attention_weights, pad_keys
from convattn.functional.reference import scores_of_images
from convattn.heads.catalogue import layers_to_read
from convattn.heads.head_report import call_name
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch
from convattn.layers import RelativeAttention
from convattn.viewer.lattice import key_lattice
from convattn.viewer.scene import SceneTensors


def encode_rows(
    weights: Float[Tensor, "*rows keys"],
) -> tuple[UInt8[Tensor, "*rows keys"], Float[Tensor, "*rows"], Float[Tensor, "*rows"]]:
    """Encodes rows of weights in bytes, levels: weight = low + level / 255 · scale. NaN counts as 0.

    Returns levels, scales and lows, which are at most 0. The error of a weight is at most 1/510 of the row's range.
    """
    weights = torch.nan_to_num(weights.float())
    lows = weights.amin(-1).clamp(max=0)
    scales = weights.amax(-1) - lows
    unit = torch.where(scales > 0, scales, 1)[..., None]
    levels = ((weights - lows[..., None]) / unit * 255).round().to(torch.uint8)
    return levels, scales, lows


class LayerCall(NamedTuple):
    """One call of an attention layer. The tensors are valid during the callback."""

    name: str  # Name of the layer; "(call 2)" is added where it runs again
    module: nn.Module
    # Rows and columns of the input of a layer of this library; empty for others
    size: tuple[int, ...]
    # What was read; None for a layer that attends by displacement alone
    attention: AttentionCall | None
    # Weights by part: "both", and "content" if known
    parts: Mapping[str, Float[Tensor, "groups heads queries keys"]]


def is_positional(module: nn.Module) -> bool:
    """Tells whether a layer attends by displacement alone, so that it needs no maps."""
    return isinstance(module, RelativeAttention) and module.content is None


def read_layers(
    network: nn.Module,
    image: Float[Tensor, "1 *sizes"],
    callback: Callable[[LayerCall], None],
    *,
    layers: str | Sequence[str] | None = None,
) -> None:
    """Runs a network on one image and calls back for each call of an attention layer, in the order in which they run.

    The weights of layers that attend by displacement alone are not computed: those of a convolution at 224 × 224 pixels
    would fill the memory, and the page computes them. Without `layers` all are read, and a network in which another
    module attends is refused.
    """
    shown = layers_to_read(network, layers)
    inputs: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()

    def note_input(
        name: str, layer: RelativeAttention, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        inputs[name] = x = layer.batch_of(*args, **kwargs)
        if is_positional(layer):
            callback(LayerCall(call_name(name, calls), layer, tuple(x.shape[2:]), None, {}))

    def read(call: AttentionCall) -> None:
        name, layer, size = call.name, network.get_submodule(call.name), ()
        require_image_grid(name, len(call.layout.grid))
        parts = {"both": call.weights[0]}
        if isinstance(layer, RelativeAttention):
            x = inputs.pop(name)
            size = tuple(x.shape[2:])
            parts["content"] = _content_weights(layer, x)
        callback(LayerCall(call_name(name, calls), layer, size, call, parts))

    positional = [name for name, module in shown.items() if is_positional(module)]
    with ExitStack() as hooks:
        for name, module in shown.items():
            if isinstance(module, RelativeAttention):
                require_image_grid(name, module.dims)
                note = partial(note_input, name)
                hooks.enter_context(module.register_forward_pre_hook(note, with_kwargs=True))
        watch(network, image, read, layers=layers, without=positional or None)
    if not calls:
        raise ArgumentError(
            f"none of the layers {', '.join(shown)} runs when the network sees an image"
        )


def _content_weights(
    layer: RelativeAttention, x: Tensor
) -> Float[Tensor, "groups heads queries keys"]:
    """Returns the attention of the content scores alone, on one image."""
    assert layer.content is not None
    keys = pad_keys(x, layer.geometry)
    axes = layer.geometry.axes(x.shape[2:])
    return attention_weights(scores_of_images(layer.content, layer.encoding, keys, axes))


def require_image_grid(name: str, axes: int) -> None:
    """Raises UnsupportedModelError unless a grid has rows and columns."""
    if axes != 2:
        grid = "a sequence" if axes == 1 else f"a grid of {axes} axes"
        raise UnsupportedModelError(
            f"{name} attends on {grid}, and the viewer shows images: rows and columns; name other layers to show"
        )


class LayerMaps:
    """The maps of one layer while images pass: rows in bytes go into the scene, and the weights of all are summed."""

    def __init__(self, call: LayerCall, number: str, tensors: SceneTensors) -> None:
        """Starts without maps; keys on no regular lattice raise UnsupportedModelError.

        `number`, "network/layer", is in the names of the tensors.
        """
        assert call.attention is not None
        self.layout, self.normalised = call.attention.layout, call.attention.normalised
        self.heads = call.attention.weights.shape[2]
        try:
            self.lattice = key_lattice(self.layout)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{call.name}: {error}") from None
        self._number, self._tensors = number, tensors
        self._images: list[int | str] = []
        self._sums: dict[str, Tensor] = {}  # By part
        self._lows: dict[str, Tensor] = {}  # By their names in the scene

    def add(self, parts: Mapping[str, Tensor], image: int | str) -> None:
        """Adds the weights on an image, or their mean."""
        for part, weights in parts.items():
            wide = weights.float().cpu()
            levels, scales, lows = encode_rows(wide)
            name = f"maps/{self._number}/{part}/{image}"
            self._tensors.keep(f"{name}/levels", levels)
            self._tensors.keep(f"{name}/scales", scales)
            self._lows[f"{name}/lows"] = lows
            self._sums[part] = wide + self._sums.get(part, 0)
        self._images.append(image)

    def describe(self, key: str, position: dict[str, Any] | None) -> dict[str, Any]:
        """Describes the attention after all images, and adds their mean if they are several.

        `key` begins the names of the tensors that are not maps.
        """
        count, tensors = len(self._images), self._tensors
        if count > 1:
            self.add({part: total / count for part, total in self._sums.items()}, "mean")
        signed = any(lows.any() for lows in self._lows.values())
        if signed:
            for name, lows in self._lows.items():
                tensors.keep(name, lows)
        parts = list(self._sums)
        if position:
            parts.insert(1, "position")
        allowed = self.layout.allowed
        if allowed is not None:
            allowed = tensors.add(f"{key}/allowed", allowed.to(torch.uint8))
        queries = self.layout.queries.int()
        return {
            "kind": "maps",
            "parts": parts,
            "position": position,
            "queries": tensors.add(f"{key}/queries", queries),
            "keys": tensors.add(f"{key}/keys", self.lattice.keys),
            "allowed": allowed,
            "signed": signed,
            "images": self._images,
        }
