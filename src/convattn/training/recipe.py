"""Training recipes: frozen dataclasses that hold everything a run depends on."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from convattn.errors import RecipeError, must_be
from convattn.training.limits import Range, explain, fits, hints

__all__ = [
    "AttentionNetRecipe",
    "ConvNetRecipe",
    "CosineRecipe",
    "DataRecipe",
    "OptimRecipe",
    "Recipe",
    "ResNetRecipe",
    "Section",
    "StepsRecipe",
    "TrainingRecipe",
]

_Count = Annotated[int, Range(1)]
_Share = Annotated[float, Range(0, 1, without_high=True)]


@dataclass(frozen=True)
class Section:
    """A table of a recipe.

    Raises:
        RecipeError: A value is of another type than its key demands, or out of range.
    """

    def __post_init__(self) -> None:
        """Checks every value against the annotation of its field."""
        for key, hint in hints(type(self)).items():
            value = getattr(self, key)
            if not dataclasses.is_dataclass(value) and not fits(value, hint):
                raise RecipeError(must_be(key, explain(hint), value))


@dataclass(frozen=True)
class AttentionNetRecipe(Section):
    """An `AttentionNet`; its fields are that network's arguments."""

    kind: Literal["attention_net"] = "attention_net"
    encoding: str = "quadratic"
    content: bool = False
    width: _Count = 400
    depth: _Count = 6
    heads: _Count = 9
    ffn: _Count = 512
    patch: _Count = 2
    dropout: _Share = 0.1
    initializer_range: Annotated[float, Range(0, without_low=True)] = 0.02


@dataclass(frozen=True)
class ConvNetRecipe(Section):
    """A `ConvNet`; its fields are that network's arguments."""

    kind: Literal["conv_net"] = "conv_net"
    kernel_size: _Count = 3
    width: _Count = 400
    depth: _Count = 6
    ffn: _Count = 512
    patch: _Count = 2
    dropout: _Share = 0.1
    initializer_range: Annotated[float, Range(0, without_low=True)] = 0.02


@dataclass(frozen=True)
class ResNetRecipe(Section):
    """A `ResNet`; with 2 blocks per stage ResNet-18."""

    kind: Literal["resnet"] = "resnet"
    blocks_per_stage: _Count = 2


@dataclass(frozen=True)
class DataRecipe(Section):
    """Which images, and how the training images are varied.

    Attributes:
        name: "digits" or "cifar10".
        folder: Folder with the files of CIFAR-10; None fetches them from the Hub.
        crop_padding: Black border, in pixels, out of which each training image is cropped at random; 0 crops nothing.
        flip: Whether each training image is mirrored left to right with probability one half.
    """

    name: Literal["digits", "cifar10"] = "cifar10"
    folder: str | None = None
    crop_padding: Annotated[int, Range(0)] = 4
    flip: bool = True


@dataclass(frozen=True)
class OptimRecipe(Section):
    """How weights move.

    Attributes:
        algorithm: "sgd" or "adamw".
        learning_rate: Highest learning rate.
        momentum: Momentum of SGD; β₁ of AdamW.
        nesterov: Whether SGD's momentum is Nesterov's; AdamW ignores it and so demands false.
        weight_decay: Factor of weight decay; centres and shapes of quadratic encodings are never decayed.
    """

    algorithm: Literal["sgd", "adamw"] = "sgd"
    learning_rate: Annotated[float, Range(0, without_low=True)] = 0.1
    momentum: _Share = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Range(0)] = 1e-4

    def __post_init__(self) -> None:
        """Checks values and their combination."""
        super().__post_init__()
        if self.nesterov and (self.algorithm != "sgd" or not self.momentum):
            raise RecipeError(must_be("nesterov", "false without sgd and momentum", self.nesterov))


@dataclass(frozen=True)
class CosineRecipe(Section):
    """Linear warm-up, then half a cosine down to 0.

    Attributes:
        kind: "cosine".
        warmup: Share of all steps in which the learning rate rises.
    """

    kind: Literal["cosine"] = "cosine"
    warmup: _Share = 0.05


@dataclass(frozen=True)
class StepsRecipe(Section):
    """A constant that falls at given epochs.

    Attributes:
        kind: "steps".
        milestones: Epochs after which the learning rate falls, rising.
        factor: What it is multiplied by.
    """

    kind: Literal["steps"] = "steps"
    milestones: tuple[_Count, ...] = (80, 150, 250)
    factor: Annotated[float, Range(0, 1, without_low=True)] = 0.1

    def __post_init__(self) -> None:
        """Checks values and the order of the milestones."""
        super().__post_init__()
        if list(self.milestones) != sorted(set(self.milestones)):
            raise RecipeError(must_be("milestones", "rising epochs", self.milestones))


@dataclass(frozen=True)
class TrainingRecipe(Section):
    """How long, and in what portions.

    Attributes:
        epochs: Number of passes over the training images.
        batch_size: Images per step, over all processes; the rest of an epoch that does not fill a batch is left out.
        precision: "no" for float32, or mixed with "bf16" or "fp16".
    """

    epochs: _Count = 300
    batch_size: _Count = 100
    precision: Literal["no", "bf16", "fp16"] = "no"


@dataclass(frozen=True)
class Recipe(Section):
    """Everything that a training run depends on.

    Attributes:
        name: Name of the recipe.
        claim: What a run shows: command, hardware, minutes, accuracy over seeds, date and revision.
        seed: Seed of the weights, the order of the images and the augmentation.
        model: The network.
        data: The images.
        optim: The optimizer.
        schedule: The learning rate over time.
        training: Epochs, batch size and precision.

    Example:
        >>> recipe = Recipe("mine", claim="not measured", data=DataRecipe("digits", crop_padding=1, flip=False))
        >>> recipe.optim.learning_rate
        0.1
    """

    name: str
    claim: str
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    model: AttentionNetRecipe | ConvNetRecipe | ResNetRecipe = field(default_factory=AttentionNetRecipe)
    data: DataRecipe = field(default_factory=DataRecipe)
    optim: OptimRecipe = field(default_factory=OptimRecipe)
    schedule: CosineRecipe | StepsRecipe = field(default_factory=CosineRecipe)
    training: TrainingRecipe = field(default_factory=TrainingRecipe)

    def to_dict(self) -> dict[str, Any]:
        """Returns the recipe as nested plain values; keys without a value are left out."""
        return dataclasses.asdict(
            self, dict_factory=lambda items: {key: _plain(value) for key, value in items if value is not None}
        )


def _plain(value: Any) -> Any:
    """Makes lists of tuples, as JSON and TOML have them."""
    return list(value) if isinstance(value, tuple) else value
