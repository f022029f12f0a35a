"""Training recipes: frozen dataclasses that hold everything a run depends on."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from convattn.errors import RecipeError, must_be
from convattn.fields import Range
from convattn.training.network_recipe import AttentionNetRecipe, NetworkRecipe
from convattn.training.section import Count, Section, Share
from convattn.training.views import Views


@dataclass(frozen=True)
class DataRecipe(Section):
    """Which images to use, and how to augment the training images.

    Attributes:
        name: "digits" or "cifar10".
        folder: Folder with the files of CIFAR-10; None fetches them from the Hub.
        crop_padding: Width in pixels of a border; each training image is cropped at random from the image with border.
            0 crops nothing.
        crop_border: "black", or "reflect" for the image mirrored at its outermost pixels.
        flip: Whether each training image is mirrored left to right with probability one half.
        alternate_flip: Whether an image that is mirrored in one epoch is not in the next; the first epoch decides. It
            needs `flip`.
        cutout: Side, in pixels, of a black square at a random place in each training image; 0 for none.
        mixup: α of the blending of two images, each with its own share λ ~ Beta(α, α); 0 for none.
        cutmix: α of the pasting of a piece of one image into another; 0 for none. With both, each batch uses one of the
            two at random.
    """

    name: Literal["digits", "cifar10"] = "cifar10"
    folder: str | None = None
    crop_padding: Annotated[int, Range(0)] = 4
    crop_border: Literal["black", "reflect"] = "black"
    flip: bool = True
    alternate_flip: bool = False
    cutout: Annotated[int, Range(0)] = 0
    mixup: Annotated[float, Range(0)] = 0.0
    cutmix: Annotated[float, Range(0)] = 0.0

    def __post_init__(self) -> None:
        """Checks values and their combination."""
        super().__post_init__()
        if self.alternate_flip and not self.flip:
            raise RecipeError(must_be("alternate_flip", "false without flip", self.alternate_flip))


@dataclass(frozen=True)
class OptimRecipe(Section):
    """The optimizer.

    Attributes:
        algorithm: "sgd" or "adamw".
        learning_rate: Highest learning rate.
        momentum: Momentum of SGD; β₁ of AdamW.
        nesterov: Whether SGD uses Nesterov momentum; must be false with AdamW.
        weight_decay: Factor of weight decay; centres and shapes of quadratic encodings are never decayed.
        centre_rate: Learning rate of the centres of quadratic encodings, as a multiple of the others'.
        sharpness_rate: Learning rate of their sharpness or shapes, likewise.
        norm_bias_rate: Learning rate of the biases of batch normalisation, likewise; their weight decay is divided by
            it, so that they decay as fast as other weights.
    """

    algorithm: Literal["sgd", "adamw"] = "sgd"
    learning_rate: Annotated[float, Range(0, without_low=True)] = 0.1
    momentum: Share = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Range(0)] = 1e-4
    centre_rate: Annotated[float, Range(0, without_low=True)] = 1.0
    sharpness_rate: Annotated[float, Range(0, without_low=True)] = 1.0
    norm_bias_rate: Annotated[float, Range(0, without_low=True)] = 1.0

    def __post_init__(self) -> None:
        """Checks values and their combination."""
        super().__post_init__()
        if self.nesterov and (self.algorithm != "sgd" or not self.momentum):
            raise RecipeError(must_be("nesterov", "false without sgd and a momentum", self.nesterov))


@dataclass(frozen=True)
class CosineRecipe(Section):
    """Linear warm-up, then half a cosine down to 0.

    Attributes:
        kind: "cosine".
        warmup: Share of all steps in which the learning rate rises.
    """

    kind: Literal["cosine"] = "cosine"
    warmup: Share = 0.05


@dataclass(frozen=True)
class StepsRecipe(Section):
    """A constant learning rate that falls at given epochs.

    Attributes:
        kind: "steps".
        milestones: Epochs after which the learning rate falls, rising.
        factor: What it is multiplied by.
    """

    kind: Literal["steps"] = "steps"
    milestones: tuple[Count, ...] = (80, 150, 250)
    factor: Annotated[float, Range(0, 1, without_low=True)] = 0.1

    def __post_init__(self) -> None:
        """Checks values and the order of the milestones."""
        super().__post_init__()
        if list(self.milestones) != sorted(set(self.milestones)):
            raise RecipeError(must_be("milestones", "rising epochs", self.milestones))


@dataclass(frozen=True)
class TriangleRecipe(Section):
    """A straight rise, then a straight fall.

    Attributes:
        kind: "triangle".
        start: Learning rate of the first step, as a share of the highest.
        peak: Share of all steps after which it is highest.
        end: Learning rate after the last step, as a share of the highest.
    """

    kind: Literal["triangle"] = "triangle"
    start: Share = 0.2
    peak: Share = 0.23
    end: Share = 0.07


@dataclass(frozen=True)
class LookaheadRecipe(Section):
    """An average of the weights, to which they return; it is tested and saved.

    Every few steps, and after the last, the average becomes ``a ← λ a + (1 − λ) w``, and the weights w and the running
    statistics of batch normalisation take its values. At step s of T, λ = decay^steps · (s / T)³.

    Source: Zhang, Lucas, Hinton, Ba, "Lookahead Optimizer: k steps forward, 1 step back", NeurIPS 2019; with a growing
    λ: Jordan, arXiv 2404.00498.

    Attributes:
        steps: Steps between two averages.
        decay: Share of the average that is kept per step at the end of the run.
    """

    steps: Count = 5
    decay: Share = 0.95


@dataclass(frozen=True)
class TrainingRecipe(Section):
    """Epochs, batch size, precision, and what else a step does.

    Attributes:
        epochs: Number of passes over the training images.
        batch_size: Images per step, over all processes; images that do not fill a batch are left out.
        micro_batch: Largest number of images that a process computes at once. The gradients of these portions are
            added, so that the step is the same and takes less memory. None computes a process's share at once.
        precision: "no" for float32, or mixed with "bf16" or "fp16".
        compile: Whether `torch.compile` compiles the network.
        label_smoothing: Share of each label that is spread over all classes.
        ema: Decay per step of an exponential moving average of the weights; if given, the average is tested and saved.
            None for none.
        reinitialise: Epochs after which degenerate heads get new random values, rising.
        stem_epochs: Epochs in which the bias of a `SpeedNet`'s stem learns; None for all.
        test_views: Views of each test image whose mean scores are tested once more after the last epoch, beside the
            images as they are: "none", "mirror" or "mirror_shift".
    """

    epochs: Count = 300
    batch_size: Count = 100
    micro_batch: Count | None = None
    precision: Literal["no", "bf16", "fp16"] = "no"
    compile: bool = False
    label_smoothing: Share = 0.0
    ema: Annotated[float, Range(0, 1, without_low=True, without_high=True)] | None = None
    reinitialise: tuple[Count, ...] = ()
    stem_epochs: Count | None = None
    test_views: Views = "none"

    def __post_init__(self) -> None:
        """Checks values and the order of the epochs."""
        super().__post_init__()
        if list(self.reinitialise) != sorted(set(self.reinitialise)):
            raise RecipeError(must_be("reinitialise", "rising epochs", self.reinitialise))


@dataclass(frozen=True)
class StartRecipe(Section):
    """Where the weights come from.

    Attributes:
        recipe: Name of the recipe whose trained network is the start; None starts with random weights.
        folder: That run's folder.
        prune: Whether the degenerate heads of that network are removed.
    """

    recipe: str | None = None
    folder: str | None = None
    prune: bool = False

    def __post_init__(self) -> None:
        """Checks values and their combination."""
        super().__post_init__()
        if self.recipe is None and (self.folder is not None or self.prune):
            raise RecipeError(must_be("recipe", "the name of a recipe, because folder or prune is set", self.recipe))


@dataclass(frozen=True)
class ConvertRecipe(Section):
    """Which convolutions become attention before the first step; see `convattn.network_to_attention`.

    Attributes:
        include: Patterns of names of the convolutions to convert.
        sharpness: α of every head in 1/pixel²; None makes hard heads, whose displacements are fixed.
        content: Whether heads get scores that depend on the input, behind gates that start closed.
    """

    include: tuple[str, ...] = ("*",)
    sharpness: Annotated[float, Range(0, without_low=True)] | None = None
    content: bool = False


@dataclass(frozen=True)
class Recipe(Section):
    """Everything that a training run depends on.

    Attributes:
        name: Name of the recipe.
        claim: What was measured: command, hardware, minutes, accuracy over seeds, date and revision.
        scale: "paper" for the recipe's own sizes; "small" and "tiny" for those of `scales.toml`.
        seed: Seed of the weights, the order of the images and the augmentation.
        model: The network.
        start: Where its weights come from.
        convert: Which of its convolutions become attention; None for none.
        data: The images.
        optim: The optimizer.
        schedule: The learning rate over time.
        training: Epochs, batch size, precision and what else a step does.
        lookahead: The average to which the weights return; None for none.

    Example:
        >>> recipe = Recipe("mine", claim="not measured", data=DataRecipe("digits", crop_padding=1, flip=False))
        >>> recipe.optim.learning_rate
        0.1
    """

    name: str
    claim: str
    scale: Literal["paper", "small", "tiny"] = "paper"
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    model: NetworkRecipe = field(default_factory=AttentionNetRecipe)
    start: StartRecipe = field(default_factory=StartRecipe)
    convert: ConvertRecipe | None = None
    data: DataRecipe = field(default_factory=DataRecipe)
    optim: OptimRecipe = field(default_factory=OptimRecipe)
    schedule: CosineRecipe | StepsRecipe | TriangleRecipe = field(default_factory=CosineRecipe)
    training: TrainingRecipe = field(default_factory=TrainingRecipe)
    lookahead: LookaheadRecipe | None = None

    def __post_init__(self) -> None:
        """Checks values and their combination."""
        super().__post_init__()
        if self.lookahead is not None and self.training.ema is not None:
            raise RecipeError(must_be("training.ema", "left away with lookahead", self.training.ema))

    def to_dict(self) -> dict[str, Any]:
        """Returns the recipe as nested plain values; keys without a value are left out."""
        return dataclasses.asdict(
            self, dict_factory=lambda items: {key: _plain(value) for key, value in items if value is not None}
        )


def _plain(value: Any) -> Any:
    """Turns tuples into lists, as in JSON and TOML."""
    return list(value) if isinstance(value, tuple) else value
