"""A network as a list of operations, which the page runs from the picture to the class scores."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from convattn.convert.surgery import full_name
from convattn.layers import RelativeAttention2d
from convattn.layers.block import MixingBlock
from convattn.models import AttentionNet
from convattn.viewer.lattice import Place
from convattn.viewer.scene import SceneTensors


class Program:
    """The operations of a network, and where the features lie on the image that each attention layer takes."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        """Starts empty; `numbers` are those of the attention layers by name."""
        self.places: dict[str, Place] = {}
        self._operations: list[dict[str, Any]] = []
        self._numbers, self._place = numbers, Place((0.0, 0.0), (1.0, 1.0))

    def collect(self, key: str, collected: SceneTensors) -> list[dict[str, Any]]:
        """Returns the operations, with the names of their tensors in the scene."""
        return [
            {
                name: collected.add(f"{key}/program/{number}/{name}", value)
                if isinstance(value, Tensor)
                else value
                for name, value in operation.items()
            }
            for number, operation in enumerate(self._operations)
        ]

    def add(self, op: str, **entries: Any) -> None:
        """Adds an operation; tensors among its entries go into the scene."""
        self._operations.append({"op": op, **entries})

    def mix(self, name: str, module: nn.Module) -> None:
        """Adds a layer that mixes pixels and keeps their grid: attention, or a convolution."""
        if isinstance(module, RelativeAttention2d) and _keeps_grid(module):
            self.places[name] = self._place
            self.add("attention", layer=self._numbers[name])
        elif type(module) is nn.Conv2d and _centred(module):
            pairs = [[size, size] for size in module.padding]
            padding = {"pairs": pairs, "mode": module.padding_mode, "spread": [1, 1]}
            options = {
                "stride": list(module.stride),
                "dilation": list(module.dilation),
                "groups": module.groups,
            }
            self.add("convolve", **options, padding=padding, weight=module.weight, bias=module.bias)
        else:
            raise _UnknownPartError(module)

    def patches(self, weight: Tensor, bias: Tensor | None, *, step: int) -> None:
        """Adds a linear map of square patches; `weight` is (outputs, channels, side, side)."""
        padding = {"pairs": [[0, 0], [0, 0]], "mode": "zeros", "spread": [1, 1]}
        options = {"stride": [step, step], "dilation": [1, 1], "groups": 1, "padding": padding}
        self.add("convolve", **options, weight=weight, bias=bias)
        self._place = self._place.among([(weight.shape[-1] - 1) / 2] * 2, [step] * 2)

    def halve(self) -> None:
        """Adds the maximum of squares of 2 × 2 pixels."""
        self.add("maxpool", size=2)
        self._place = self._place.among([0.5] * 2, [2] * 2)

    def normalise_channels(self, norm: nn.Module) -> None:
        """Adds a batch normalisation with its running statistics, computed in float64 and rounded once."""
        if isinstance(norm, nn.Identity):
            return
        if (
            type(norm) is not nn.BatchNorm2d
            or norm.running_mean is None
            or norm.running_var is None
        ):
            raise _UnknownPartError(norm)
        weight, bias = (
            None if item is None else item.detach().double() for item in (norm.weight, norm.bias)
        )
        scale = (1.0 if weight is None else weight) / (norm.running_var.double() + norm.eps).sqrt()
        shift = (0.0 if bias is None else bias) - norm.running_mean.double() * scale
        self.add("scale", scale=scale, shift=shift)

    def normalise_pixels(self, norm: nn.LayerNorm) -> None:
        """Adds a layer normalisation of each pixel's channels."""
        self.add("normalise", eps=norm.eps, scale=norm.weight, shift=norm.bias)

    def linear(self, layer: nn.Module) -> None:
        """Adds a linear map of each pixel."""
        if isinstance(layer, nn.Identity):
            return
        if type(layer) is not nn.Linear:
            raise _UnknownPartError(layer)
        self.add("linear", weight=layer.weight, bias=layer.bias)


class _UnknownPartError(Exception):
    """The page cannot run a part."""


def _keeps_grid(layer: RelativeAttention2d) -> bool:
    """Tells whether queries are the pixels of the image, as in all layers of these networks."""
    geometry = layer.geometry
    pairs = zip(geometry.padding, geometry.anchor, strict=True)
    same = all(before == anchor for (before, _), anchor in pairs)
    return same and set(geometry.stride) == set(geometry.input_dilation) == {1}


def _centred(layer: nn.Conv2d) -> bool:
    """Tells whether a convolution gives an image of the size that it takes."""
    centred = [d * (k - 1) // 2 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
    return list(layer.padding) == centred and set(layer.stride) == {1}


@torch.no_grad()
def make_program(network: nn.Module, numbers: Mapping[str, int]) -> Program | None:
    """Writes a network down as operations; None if it is of another class, or has a part that the page cannot run.

    `numbers` are those of the attention layers of displacements by name.
    """
    make = _MAKERS.get(full_name(type(network)))
    mixing = {key for key, part in network.named_modules() if isinstance(part, RelativeAttention2d)}
    if make is None or mixing != set(numbers):
        return None
    program = Program(numbers)
    try:
        make(network, program)
    except _UnknownPartError:
        return None
    return program


def _speed_net(network: Any, program: Program) -> None:
    stem = network.stem
    program.patches(stem.weight.unflatten(1, (-1, stem.patch, stem.patch)), stem.bias, step=1)
    program.add("gelu")
    for number, stage in enumerate(network.stages):
        for place in ("first", "second"):
            program.mix(f"stages.{number}.{place}", stage.get_submodule(place))
            if place == "first":
                program.halve()
            program.normalise_channels(stage.get_submodule(f"{place}_norm"))
            program.add("gelu")
    program.add("max")
    program.linear(network.head)
    program.add("divide", by=9)


def _attention_net(network: AttentionNet, program: Program) -> None:
    if type(network.embed) is not nn.Linear:
        raise _UnknownPartError(network.embed)
    side = network.patch
    program.patches(
        network.embed.weight.unflatten(1, (-1, side, side)), network.embed.bias, step=side
    )
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


_MAKERS: Mapping[str, Callable[[Any, Program], None]] = MappingProxyType(
    {
        "convattn.lab.speed_net.SpeedNet": _speed_net,
        "convattn.models.attention_net.AttentionNet": _attention_net,
    }
)
"""What writes a network down, by the full name of its class."""
