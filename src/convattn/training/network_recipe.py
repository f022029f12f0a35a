"""The networks that a recipe can name."""

from dataclasses import dataclass
from typing import Annotated, Literal

from convattn.fields import Range
from convattn.training.section import Count, Section, Share


@dataclass(frozen=True)
class AttentionNetRecipe(Section):
    """An `AttentionNet`; its fields are that network's arguments."""

    kind: Literal["attention_net"] = "attention_net"
    encoding: str = "quadratic"
    content: bool = False
    gated: bool = False
    centres: Literal["normal", "grid"] = "normal"
    width: Count = 400
    depth: Count = 6
    heads: Count = 9
    ffn: Count = 512
    patch: Count = 2
    dropout: Share = 0.1
    initializer_range: Annotated[float, Range(0, without_low=True)] = 0.02


@dataclass(frozen=True)
class ConvNetRecipe(Section):
    """A `ConvNet`; its fields are that network's arguments."""

    kind: Literal["conv_net"] = "conv_net"
    kernel_size: Count = 3
    width: Count = 400
    depth: Count = 6
    ffn: Count = 512
    patch: Count = 2
    dropout: Share = 0.1
    initializer_range: Annotated[float, Range(0, without_low=True)] = 0.02


@dataclass(frozen=True)
class ResNetRecipe(Section):
    """A `ResNet`; with 2 blocks per stage ResNet-18."""

    kind: Literal["resnet"] = "resnet"
    blocks_per_stage: Count = 2
    width: Count = 64


@dataclass(frozen=True)
class SpeedNetRecipe(Section):
    """A `SpeedNet`; its fields are that network's arguments."""

    kind: Literal["speed_net"] = "speed_net"
    mixing: Literal["attention", "conv", "hard", "random", "random-frozen", "content"] = "attention"
    widths: tuple[Count, ...] = (64, 256, 256)
    sharpness: Annotated[float, Range(0, without_low=True)] = 3.0


NetworkRecipe = AttentionNetRecipe | ConvNetRecipe | ResNetRecipe | SpeedNetRecipe
