"""A network as a list of operations, which the page runs from the picture to the class scores."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet
from convattn.models.block import MixingBlock
from convattn.structure import full_name
from convattn.viewer.lattice import Place
from convattn.viewer.scene import SceneTensors


class Program:
    """The operations of a network, and where the features lie on the image that each attention layer takes."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        """Starts empty; `numbers` are those of the attention layers by name."""
        self.places: dict[str, Place] = {}
        self._operations: list[dict[str, Any]] = []
        self._numbers = numbers
        self._place = Place(np.zeros(2), np.ones(2))

    def collect(self, key: str, tensors: SceneTensors) -> list[dict[str, Any]]:
        """Puts the tensors of the operations into the scene, and returns the operations with their names."""
        for number, operation in enumerate(self._operations):
            for name, value in operation.items():
                if isinstance(value, Tensor):
                    operation[name] = tensors.add(f"{key}/program/{number}/{name}", value)
        return self._operations

    def add(self, op: str, **entries: Any) -> None:
        """Adds an operation; tensors among its entries go into the scene."""
        self._operations.append({"op": op, **entries})

    def mix(self, name: str, module: nn.Module) -> None:
        """Adds a layer that mixes pixels and keeps their grid: attention, or a convolution."""
        if isinstance(module, RelativeAttention2d) and _keeps_grid(module):
            self.places[name] = self._place
            self.add("attention", layer=self._numbers[name])
        elif type(module) is nn.Conv2d and _is_centred(module):
            self.convolve(module)
        else:
            raise _UnknownPartError(module)

    def convolve(self, layer: nn.Conv2d) -> None:
        """Adds a convolution that is padded by so many pixels."""
        assert not isinstance(layer.padding, str)
        pairs = [[size, size] for size in layer.padding]
        self.add(
            "convolve",
            stride=list(layer.stride),
            dilation=list(layer.dilation),
            groups=layer.groups,
            padding={"pairs": pairs, "mode": layer.padding_mode, "spread": [1, 1]},
            weight=layer.weight,
            bias=layer.bias,
        )

    def lie_among(self, first: float, step: int = 1) -> None:
        """Says where features lie among those that the layer before took, as the middles of patches."""
        self._place = self._place.among(first, step)

    def normalise_channels(self, norm: nn.Module) -> None:
        """Adds a batch normalisation with its running statistics, computed in float64 and rounded once."""
        if isinstance(norm, nn.Identity):
            return
        is_known = type(norm) is nn.BatchNorm2d
        if not is_known or norm.running_mean is None or norm.running_var is None:
            raise _UnknownPartError(norm)
        scale = 1 / (norm.running_var.double() + norm.eps).sqrt()
        if norm.affine:
            scale *= norm.weight.double()
        shift = -norm.running_mean.double() * scale
        if norm.affine:
            shift += norm.bias.double()
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
    starts = {geometry.first_pixel(axis) for axis in range(2)}
    steps = {*geometry.stride, *geometry.input_dilation}
    return starts == {0} and steps == {1}


def _is_centred(layer: nn.Conv2d) -> bool:
    """Tells whether a convolution gives an image of the size that it takes."""
    reach = np.multiply(layer.dilation, np.subtract(layer.kernel_size, 1))
    centred = tuple((reach // 2).tolist())
    return layer.padding == centred and layer.stride == (1, 1)


@torch.no_grad()
def make_program(network: nn.Module, numbers: Mapping[str, int]) -> Program | None:
    """Writes a network down as operations; None if it is of another class, or has a part that the page cannot run.

    `numbers` are those of the attention layers of displacements by name.
    """
    modules = network.named_modules()
    attention = {name for name, part in modules if isinstance(part, RelativeAttention2d)}
    if attention != set(numbers):
        return None
    program = Program(numbers)
    try:
        if type(network) is AttentionNet:
            _write_attention_net(network, program)
        elif full_name(type(network)) == "convattn.lab.speed_net.SpeedNet":
            _write_speed_net(network, program)
        else:
            return None
    except _UnknownPartError:
        return None
    return program


def _write_speed_net(network: Any, program: Program) -> None:
    program.mix("stem", network.stem)
    program.lie_among((network.arguments["patch"] - 1) / 2)
    program.add("gelu")
    for number, stage in enumerate(network.stages):
        program.mix(f"stages.{number}.first", stage.first)
        program.add("maxpool", size=2)
        program.lie_among(0.5, 2)
        program.normalise_channels(stage.first_norm)
        program.add("gelu")
        program.mix(f"stages.{number}.second", stage.second)
        program.normalise_channels(stage.second_norm)
        program.add("gelu")
    program.add("max")
    program.linear(network.head)
    program.add("divide", by=9)


def _write_attention_net(network: AttentionNet, program: Program) -> None:
    embed, side = network.embed, network.patch
    if type(embed) is not nn.Linear:
        raise _UnknownPartError(embed)
    channels, width = network.in_channels, embed.out_features
    patches = nn.Conv2d(channels, width, side, stride=side, device="meta")
    patches.weight = nn.Parameter(embed.weight.view_as(patches.weight))
    patches.bias = embed.bias
    program.convolve(patches)
    program.lie_among((side - 1) / 2, side)
    for number, block in enumerate(network.blocks):
        assert isinstance(block, MixingBlock)
        _write_block(block, f"blocks.{number}.mixer", program)
    program.add("mean")
    program.linear(network.head)


def _write_block(block: MixingBlock, name: str, program: Program) -> None:
    program.add("keep")
    program.mix(name, block.mixer)
    program.linear(block.dense)
    program.add("add")
    program.normalise_pixels(block.mixer_norm)
    program.add("keep")
    program.linear(block.expand)
    program.add("gelu")
    program.linear(block.contract)
    program.add("add")
    program.normalise_pixels(block.feedforward_norm)
