"""Training recipes: frozen dataclasses that hold everything a run depends on."""

import dataclasses
import hashlib
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from convattn.errors import ArgumentError, RecipeError, must_be, optional_module, require_name
from convattn.fields import Range, Text, hints, read
from convattn.files import AnyPath, as_path

Scale = Literal["paper", "medium", "small", "tiny"]  # The largest first
SCALES: tuple[str, ...] = get_args(Scale)
Views = Literal["none", "mirror"]  # Of test images, with averaged scores; see `lab.augment.views`
Count = Annotated[int, Range(1)]  # a whole number of at least 1
Share = Annotated[float, Range(0, 1, without_high=True)]  # a number in [0, 1)
Positive = Annotated[float, Range(0, without_low=True)]  # a number above 0


@dataclass(frozen=True)
class Section:
    """A table of a recipe; a value of another type than its key demands, or out of range, raises RecipeError."""

    def __post_init__(self) -> None:
        for key, hint in hints(type(self)).items():
            try:
                value = read(hint, getattr(self, key), key)
            except ArgumentError as error:
                raise RecipeError(str(error)) from None
            object.__setattr__(self, key, value)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values as nested plain values; keys without a value are left out."""
        return dataclasses.asdict(self, dict_factory=_plain_table)


def _plain_table(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a table of TOML: lists in place of tuples, and no key without a value."""
    table = {}
    for key, value in items:
        if value is not None:
            table[key] = list(value) if isinstance(value, tuple) else value
    return table


@dataclass(frozen=True)
class EncodingRecipe(Section):
    """Further arguments of an encoding; None leaves its default."""

    hidden: Count | None = None  # Hidden units of "distance", or of each axis of "axial_distance"
    frequencies: Count | None = None  # Waves per axis of "sinusoidal"
    # Its fastest to its slowest frequency
    max_period: Annotated[float, Range(1, without_low=True)] | None = None


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
    initializer_range: Positive = 0.02
    position_start: Literal["network", "table"] | None = None  # None is "network"
    encoding_options: EncodingRecipe | None = None


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
    initializer_range: Positive = 0.02


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
    sharpness: Positive = 3.0
    patch: Count = 2


NetworkRecipe = AttentionNetRecipe | ConvNetRecipe | ResNetRecipe | SpeedNetRecipe


@dataclass(frozen=True)
class DataRecipe(Section):
    """Which images to use, and how to augment the training images."""

    # "folder" for pictures of one's own; see `convattn.data.load_folder`
    name: Literal["digits", "cifar10", "folder"] = "cifar10"
    # Folder of the pictures, or with the files of CIFAR-10, which None fetches from the Hub
    folder: str | None = None
    # Rows and columns to which the pictures of a folder are resized; None is 32
    size: Count | None = None
    # Border in pixels around an image that is then cropped; 0 for none
    crop_padding: Annotated[int, Range(0)] = 4
    # "reflect" mirrors the image at its outermost pixels
    crop_border: Literal["black", "reflect"] = "black"
    # Whether each training image is mirrored left to right with probability one half
    flip: bool = True
    # Whether to mirror each image in every second epoch instead; needs `flip`
    alternate_flip: bool = False
    # Training images, drawn with a fixed seed, that are not trained on, and measured in place of the test images; None
    # trains on all and measures the test images
    held_out: Count | None = None

    @property
    def measured(self) -> Literal["test", "validation"]:
        """Which images the run measures: those of the test split, or held-out training images."""
        return "test" if self.held_out is None else "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "folder" and self.folder is None:
            raise RecipeError(must_be("folder", "the folder of the pictures", self.folder))
        if self.name == "digits" and self.folder is not None:
            expectation = "left out for digits; pictures of your own are given by --data FOLDER"
            raise RecipeError(must_be("folder", expectation, self.folder))
        if self.name != "folder" and self.size is not None:
            raise RecipeError(must_be("size", "left out but for a folder of pictures", self.size))
        if self.alternate_flip and not self.flip:
            raise RecipeError(must_be("alternate_flip", "false without flip", self.alternate_flip))


@dataclass(frozen=True)
class OptimRecipe(Section):
    """The optimizer."""

    algorithm: Literal["sgd", "adamw"] = "sgd"
    learning_rate: Positive = 0.1  # Highest learning rate
    momentum: Share = 0.9  # Momentum of SGD; β₁ of AdamW
    nesterov: bool = False  # Whether SGD uses Nesterov momentum; must be false with AdamW
    # Centres and shapes of quadratic encodings are never decayed
    weight_decay: Annotated[float, Range(0)] = 1e-4
    # Learning rates of centres and of sharpness or shapes of quadratic encodings, as multiples of the others'
    centre_rate: Positive = 1.0
    sharpness_rate: Positive = 1.0
    # The same for biases of batch normalisation; weight decay is divided by it, so they decay as fast as others
    norm_bias_rate: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.algorithm != "sgd" or not self.momentum):
            raise RecipeError(
                must_be("nesterov", "false without sgd and a momentum", self.nesterov)
            )


@dataclass(frozen=True)
class CosineRecipe(Section):
    """Linear warm-up, then half a cosine down to 0."""

    kind: Literal["cosine"] = "cosine"
    warmup: Share = 0.05  # Share of all steps in which the learning rate rises


@dataclass(frozen=True)
class StepsRecipe(Section):
    """A constant learning rate that falls at given epochs."""

    kind: Literal["steps"] = "steps"
    milestones: tuple[Count, ...] = (80, 150, 250)  # Epochs after which the learning rate falls
    factor: Annotated[float, Range(0, 1, without_low=True)] = 0.1  # What it is multiplied by


@dataclass(frozen=True)
class TriangleRecipe(Section):
    """A straight rise, then a straight fall."""

    kind: Literal["triangle"] = "triangle"
    start: Share = 0.2  # Learning rate of the first step, as a share of the highest
    peak: Share = 0.23  # Share of all steps after which it is highest
    end: Share = 0.07  # Learning rate after the last step, as a share of the highest


@dataclass(frozen=True)
class LookaheadRecipe(Section):
    """A slow average of the weights, which replaces them every few steps; the average is evaluated and saved.

    Every few steps, and after the last, the average becomes ``a ← λ a + (1 − λ) w``, and the weights w and the running
    statistics of batch normalisation take its values. At step s of T, λ = decay^steps · (s / T)³.

    Source: Zhang, Lucas, Hinton, Ba, "Lookahead Optimizer: k steps forward, 1 step back", NeurIPS 2019; with a growing
    λ: Jordan, arXiv 2404.00498.
    """

    steps: Count = 5  # Steps between two averages
    decay: Share = 0.95  # Share of the average that is kept per step at the end of the run


@dataclass(frozen=True)
class TrainingRecipe(Section):
    """Epochs, batch size, precision, and what else a step does."""

    epochs: Count = 300  # Number of passes over the training images
    # Images per step, over all processes; images that do not fill a batch are left out
    batch_size: Count = 100
    # "no" for float32, or mixed with "bf16" or "fp16"
    precision: Literal["no", "bf16", "fp16"] = "no"
    compile: bool = False  # Whether `torch.compile` compiles the network
    label_smoothing: Share = 0.0  # Share of each label that is spread over all classes
    # Epochs in which the bias of a `SpeedNet`'s stem learns; None for all
    stem_epochs: Count | None = None
    # Views of each test image whose mean scores are tested too after the last epoch
    test_views: Views = "none"


@dataclass(frozen=True)
class StartRecipe(Section):
    """Where the weights come from."""

    # Name of the recipe whose trained network is the start; None starts with random weights
    recipe: str | None = None
    folder: str | None = None  # That run's folder
    prune: bool = False  # Whether the degenerate heads of that network are removed

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recipe is None and (self.folder is not None or self.prune):
            raise RecipeError(
                must_be(
                    "recipe", "the name of a recipe, because folder or prune is set", self.recipe
                )
            )


@dataclass(frozen=True)
class ConvertRecipe(Section):
    """Which convolutions become attention before the first step; see `convattn.network_to_attention`."""

    include: tuple[str, ...] = ("*",)  # Patterns of names of the convolutions to convert
    # α of every head in 1/pixel²; None makes hard heads, whose displacements are fixed
    sharpness: Positive | None = None
    # Whether heads get scores that depend on the input, behind gates that start closed
    content: bool = False


@dataclass(frozen=True)
class Recipe(Section):
    """Everything that a training run depends on.

    Example:
        >>> recipe = Recipe("mine", claim="not measured", data=DataRecipe("digits", crop_padding=1, flip=False))
        >>> recipe.optim.learning_rate
        0.1
    """

    name: str  # Name of the recipe
    # What was measured: command, hardware, minutes, accuracy over seeds, date and revision
    claim: str
    # Modules to import first, which register encodings of one's own; they are looked for in the current folder, too
    imports: tuple[str, ...] | None = None
    # "paper" for the recipe's own sizes; the others for those of `scales.toml`
    scale: Scale = "paper"
    # Seed of the weights, the order of the images and the augmentation
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    model: NetworkRecipe = AttentionNetRecipe()  # The network
    start: StartRecipe = StartRecipe()  # Where its weights come from
    # Which of its convolutions become attention; None for none
    convert: ConvertRecipe | None = None
    data: DataRecipe = DataRecipe()  # The images
    optim: OptimRecipe = OptimRecipe()  # The optimizer
    # The learning rate over time
    schedule: CosineRecipe | StepsRecipe | TriangleRecipe = CosineRecipe()
    # Epochs, batch size, precision and what else a step does
    training: TrainingRecipe = TrainingRecipe()
    # The average to which the weights return; None for none
    lookahead: LookaheadRecipe | None = None

    @property
    def is_small(self) -> bool:
        """Whether steps take only microseconds, as for 8 x 8 digits, so that more threads would not help."""
        return self.data.name == "digits"

    @property
    def run_name(self) -> str:
        """Name of the folder of a run: recipe, scale if it is not paper, and seed."""
        scale = () if self.scale == "paper" else (self.scale,)
        return "-".join([safe_name(self.name), *scale, str(self.seed)])


_LONGEST = 80


def safe_name(label: str) -> str:
    """Returns a label as a name that every file system keeps, also one that does not tell capitals from small letters.

    If characters were replaced, a few digits of its hash are added.
    """
    readable = re.sub(r"[^a-z0-9.-]+", "_", label.lower())[:_LONGEST].strip("._-")
    if readable == label:
        return label
    digits = hashlib.sha256(label.encode()).hexdigest()[:8]
    return f"{readable}-{digits}"


_Changes = dict[str, dict[str, dict[str, Any]]]
"""Changes by scale, section and key."""

_RECIPES = Path(__file__).with_name("recipes")


def recipe_names() -> list[str]:
    """Returns the names of the recipes that come with the package, sorted."""
    return sorted(file.stem for file in _RECIPES.glob("*.toml"))


def load_recipe(
    name_or_path: AnyPath,
    *,
    scale: str | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Recipe:
    """Reads a recipe, changes its scale and applies overrides.

    Args:
        name_or_path: Name of a recipe of the package, or a path that ends in ".toml".
        scale: "paper" for the sizes that the recipe states, "medium" for half an hour to two hours, "small" for 7 to
            40 minutes and "tiny" for seconds on a core; None leaves the scale as the file has it.
        overrides: New values by dotted key, as text: ``{"optim.learning_rate": "0.05"}``; items of a list are separated
            by commas.

    Returns:
        The recipe, every value checked.

    Raises:
        ArgumentError: The name is neither text nor a path, or the overrides are not a dict.
        UnknownNameError: The package has no recipe of that name.
        RecipeError: The file is missing or not TOML, a key is unknown or missing, or a value is of the wrong type or
            out of range (the message names the file, the key, what was expected and what came); or the recipe does not
            have that scale.

    Example:
        >>> load_recipe("digits-quadratic", overrides={"training.epochs": "3"}).training.epochs
        3
    """
    source, content = _read(name_or_path)
    overrides = overrides or {}
    if not isinstance(overrides, Mapping) or not all(isinstance(key, str) for key in overrides):
        raise ArgumentError(must_be("overrides", "new values by key, as a dict", overrides))
    if scale is not None:
        require_name("scale", scale, SCALES)
    try:
        own_scales = read(_Changes, content.pop("scales", {}), "scales")
        for name in own_scales:
            require_name("scale", name, SCALES[1:])
        if scale is not None and scale != content.get("scale", "paper"):
            content = _change_scale(content, scale, own_scales)
        for key, text in overrides.items():
            _override(content, key, text)
        return read(Recipe, content)
    except ArgumentError as error:
        raise RecipeError(f"{source}: {error}") from None


def _override(content: dict[str, Any], key: str, text: str) -> None:
    """Sets the value of a dotted key."""
    if key == "scale":  # it would change the name of the scale, and none of its values
        raise ArgumentError(
            "scale cannot be set by an override: use scale=NAME (command: --scale NAME)"
        )
    *sections, last = key.split(".")
    table = content
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ArgumentError(f"cannot set {key}, because {section} is a single value")
    table[last] = Text(text)


def recipe_to_toml(recipe: Recipe) -> str:
    """Returns a recipe as TOML with every value, for `load_recipe`; raises MissingDependencyError without tomli-w."""
    tomli_w = optional_module("tomli_w", "train")
    return tomli_w.dumps(recipe.to_dict(), multiline_strings=True)


def command_for(recipe: Recipe) -> str:
    """Returns the command that repeats a run, with one ``--set`` for each changed value.

    For a recipe that is not in the package it names a file.

    Example:
        >>> command_for(load_recipe("digits-quadratic", overrides={"seed": "1"}))
        'convattn train digits-quadratic --set seed=1'
    """
    of_file = "convattn train recipe.toml"
    if recipe.name not in recipe_names():
        return of_file
    try:
        original = flatten(load_recipe(recipe.name, scale=recipe.scale).to_dict())
    except RecipeError:
        return of_file
    values = flatten(recipe.to_dict())
    if original.keys() - values.keys():
        return of_file
    words = ["convattn train", recipe.name]
    if recipe.scale != "paper":
        words.append(f"--scale {recipe.scale}")
    for key, value in values.items():
        if original.get(key) != value:
            words.append(f"--set {shlex.quote(f'{key}={_as_text(value)}')}")
    return " ".join(words)


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Lists the keys in which two tables differ, as of recipes.

    The claim and the folder of the data change no number, and are left out.

    Example:
        >>> differing_keys({"claim": "none", "data": {"name": "digits"}}, {"data": {"name": "cifar10"}})
        ["data.name is 'digits', not 'cifar10'"]
    """
    one, other = flatten(first), flatten(second)
    differing = [
        key
        for key in {**one, **other}
        if key not in {"claim", "data.folder"} and one.get(key) != other.get(key)
    ]
    return [f"{key} is {one.get(key)!r}, not {other.get(key)!r}" for key in differing]


def flat_values(recipe: Recipe) -> dict[str, Any]:
    """Returns a recipe's values by dotted key; lists become text separated by commas."""
    flat = flatten(recipe.to_dict())
    for key, value in flat.items():
        if isinstance(value, list):
            flat[key] = _as_text(value)
    return flat


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _as_text(value: object) -> str:
    """Writes a value as the text of an override."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _read(name_or_path: AnyPath) -> tuple[str, dict[str, Any]]:
    """Returns the name of the file, for messages, and what it holds."""
    source = str(as_path(name_or_path, "name_or_path"))
    file = Path(source)
    if not source.endswith(".toml"):
        require_name("recipe", source, recipe_names())
        source += ".toml"
        file = _RECIPES / source
    try:
        return source, tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{source}: cannot read the recipe ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{source}: not TOML ({error})") from None


def _change_scale(content: Mapping[str, Any], scale: str, own: _Changes) -> dict[str, Any]:
    """Changes the scale of a recipe of CIFAR-10 from "paper" to another.

    `scales.toml` holds the changes for every recipe; those in `own`, the recipe's own table ``scales``, are
    applied after them. For a section with several kinds (model, schedule), `scales.toml` has a table for each kind.

    Example:
        >>> recipe = {"model": {"kind": "conv_net", "width": 400}, "data": {"name": "cifar10"}}
        >>> _change_scale(recipe, "tiny", {})["data"]["name"]
        'digits'
    """
    stated = content.get("scale", "paper")
    if stated != "paper":
        raise RecipeError(must_be("scale", f"{stated!r}, as the file says", scale))
    data = content.get("data", {})
    if isinstance(data, dict) and data.get("name", "cifar10") != "cifar10":
        expected = "paper, because only recipes of cifar10 have other scales"
        raise RecipeError(must_be("scale", expected, scale))
    file = _RECIPES.with_name("scales.toml")
    shared = tomllib.loads(file.read_text(encoding="utf-8"))
    changed = {"model": {"kind": AttentionNetRecipe.kind}, **content, "scale": scale}
    for scales in (shared, own):
        for section, table in scales.get(scale, {}).items():
            changed[section] = _change_section(changed.get(section, {}), table)
    return changed


def _change_section(section: Any, changes: dict[Any, Any]) -> Any:
    """Applies changes to a section; of changes listed by kind, those for its own kind."""
    if not isinstance(section, dict):
        return section  # refused with its name where all sections are checked
    kind = section.get("kind")
    if changes and all(isinstance(table, dict) for table in changes.values()):
        changes = changes.get(kind, {})
    if changes.get("kind", kind) != kind:
        return changes
    return {**section, **changes}
