"""Networks of this library whose attention depends on displacements alone, as operations that the page runs."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from convattn.layers import RelativeAttention2d
from convattn.layers.block import MixingBlock
from convattn.models import AttentionNet, SpeedNet
from convattn.viewer.places import Place
from convattn.viewer.scene import Collected

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
