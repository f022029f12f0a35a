"""Builds what a run uses from the sections of its recipe: data, network, optimizer, schedule."""

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import nn

from convattn.convert import network_to_attention
from convattn.encodings import Encoding
from convattn.encodings.registry import import_modules, require_encoding
from convattn.errors import (
    ArgumentError,
    CheckpointError,
    ConversionError,
    RecipeError,
    must_be,
    require_packages,
)
from convattn.fields import read
from convattn.files import AnyPath
from convattn.lab.cifar10 import holds_cifar10, load_cifar10
from convattn.lab.own_images import FOLDER_SIZE, load_folder
from convattn.lab.pruning import prune_heads
from convattn.lab.recipe import (
    AttentionNetRecipe,
    ConvertRecipe,
    ConvNetRecipe,
    CosineRecipe,
    DataRecipe,
    NetworkRecipe,
    OptimRecipe,
    Recipe,
    SpeedNetRecipe,
    StepsRecipe,
    TriangleRecipe,
)
from convattn.lab.speed_net import SpeedNet
from convattn.models import AttentionNet, ConvNet, ResNet
from convattn.networks import load_network
from convattn.networks.datasets import ImageDataset, load_digits
from convattn.networks.pictures import normalise
from convattn.provenance import RunRecord

Network: TypeAlias = AttentionNet | ConvNet | ResNet | SpeedNet
"""What a recipe can train."""

_CERTIFIED = 4  # test images on which a conversion is certified
_WHITENED = 5000  # training images whose patches are whitened


def require_for_run(
    recipe: Recipe,
    *,
    has_data: bool = False,
    has_folder: bool = True,
    further: Sequence[str] = (),
) -> None:
    """Finds out before a run begins whether everything that it needs is there, `further` modules included.

    Imports the modules that the recipe names. Raises UnknownNameError if its encoding is still unknown, and one
    MissingDependencyError for all packages.
    """
    modules = ["accelerate", *further]
    if has_folder:
        modules += ["huggingface_hub", "pyarrow", "tomli_w"]
    if not has_data and recipe.data.name == "digits":
        modules.append("sklearn")
    elif not has_data:
        modules.append("PIL")
    require_packages(train=modules)
    import_modules(recipe.imports or ())
    if isinstance(recipe.model, AttentionNetRecipe):
        require_encoding(recipe.model.encoding)


def training_device() -> torch.device:
    """Returns the device on which accelerate trains; ACCELERATE_USE_CPU keeps it to the CPU."""
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    device = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU")).device
    assert device is not None
    return device


def load_data(recipe: DataRecipe, data: ImageDataset | None = None) -> ImageDataset:
    """Loads the images that a recipe names, or takes others, and holds out what it says, on the CPU.

    The folder of CIFAR-10 may also be given by the environment variable CONVATTN_CIFAR10, so that recipes need no local
    paths; without either, the files come from the Hub.
    """
    if data is None and recipe.name == "digits":
        data = load_digits()
    elif data is None and recipe.name == "folder":
        data = load_folder(str(recipe.folder), size=recipe.size or FOLDER_SIZE)
    elif data is None:
        data = load_cifar10(recipe.folder or os.environ.get("CONVATTN_CIFAR10"))
    return data if recipe.held_out is None else data.held_out(recipe.held_out)


def data_changes(folder: AnyPath) -> dict[str, str]:
    """Returns the overrides that make a recipe use a folder: with the files of CIFAR-10, or of one's own pictures.

    Raises ArgumentError unless it is a folder.
    """
    if not Path(folder).is_dir():
        raise ArgumentError(must_be("data", "a folder that exists", str(folder)))
    name = "cifar10" if holds_cifar10(Path(folder)) else "folder"
    return {"data.name": name, "data.folder": str(folder)}


def load_data_of(record: RunRecord, folder: AnyPath | None = None) -> ImageDataset:
    """Loads the images that a run was trained and tested on, on the CPU.

    A folder replaces the one that it names; a run on digits names none, and needs none.
    """
    recipe = read(DataRecipe, record.recipe["data"])
    if folder is not None and recipe.name != "digits":
        recipe = replace(recipe, folder=str(folder))
    return load_data(recipe)


def build_network(recipe: Recipe, data: ImageDataset) -> Network:
    """Builds the network of a recipe, for images of the shape and the classes of a data set.

    It has the weights of the run to start from, or new ones from PyTorch's global random numbers; the stem of a new
    `SpeedNet` whitens the patches of the first training images. The convolutions that the recipe names are then
    converted to attention.
    """
    fresh = _draw_network(recipe.model, data)
    if isinstance(fresh, SpeedNet):
        fresh.whiten(normalise(data.train.images[:_WHITENED], data.mean, data.std))
    network = fresh if recipe.start.recipe is None else _load_start(recipe, fresh, data)
    return network if recipe.convert is None else _convert(network, recipe.convert, data)


def _draw_network(recipe: NetworkRecipe, data: ImageDataset) -> Network:
    """Draws the network of a recipe, for images of the shape and the classes of a data set."""
    channels, rows, cols = data.image_shape
    options = recipe.to_dict() | {"num_classes": data.num_classes, "in_channels": channels}
    del options["kind"]
    if isinstance(recipe, AttentionNetRecipe):
        return AttentionNet(**options, image_size=max(rows, cols))
    if isinstance(recipe, ConvNetRecipe):
        return ConvNet(**options)
    if isinstance(recipe, SpeedNetRecipe):
        return SpeedNet(**options)
    return ResNet(**options)


def _load_start(recipe: Recipe, expected: Network, data: ImageDataset) -> Network:
    """Gives a network that the recipe describes the weights to start from, and checks that they fit it."""
    start = recipe.start
    if start.folder is None:
        raise RecipeError(f"start.folder must name the folder of a run of {start.recipe}")
    file = Path(start.folder, "record.json")
    if file.is_file():
        _require_start(recipe, RunRecord.load(file), data)
    network = load_network(start.folder)
    try:
        expected.load_state_dict(network.state_dict())
    except RuntimeError:
        raise CheckpointError(
            f"the network in {start.folder} does not fit the recipe's {type(expected).__name__}"
        ) from None
    expected.eval()
    if not start.prune:
        return expected
    if not isinstance(expected, AttentionNet):
        raise CheckpointError(
            f"start.prune needs an AttentionNet, but {start.folder} holds a {type(network).__name__}"
        )
    return prune_heads(expected)


def _require_start(recipe: Recipe, run: RunRecord, data: ImageDataset) -> None:
    """Raises RecipeError if a run is not the one that a recipe starts from, or has learned what it is measured on."""
    folder, scale = recipe.start.folder, run.recipe["scale"]
    asked, found = f"{recipe.start.recipe} at scale {recipe.scale}", f"{run.name} at scale {scale}"
    if asked != found:
        raise RecipeError(
            f"start.folder must hold a run of {asked}, but {folder} is one of {found}"
        )
    held_out = data.record.hashes.get("validation")
    if held_out is not None and held_out != run.data.hashes.get("validation"):
        raise RecipeError(
            f"the run in start.folder={folder} has learned the images that data.held_out holds out:"
            f" train it with data.held_out={recipe.data.held_out}, too"
        )


def _convert(network: Network, recipe: ConvertRecipe, data: ImageDataset) -> Network:
    """Converts convolutions to attention, and raises if the certificate fails."""
    attention, certificate = network_to_attention(
        network,
        sharpness=recipe.sharpness,
        content=recipe.content,
        include=recipe.include,
        images=normalise(data.test.images[:_CERTIFIED], data.mean, data.std),
    )
    if certificate.verdict == "failed":
        raise ConversionError(
            f"the conversion that the recipe asks for failed its check:\n{certificate.summary()}"
        )
    return cast(Network, attention)


class _Settings(NamedTuple):
    """How a group of parameters learns."""

    weight_decay: float
    rate: float = 1.0  # Factor of the learning rate
    epochs: int | None = None  # In which it learns; None for all


def build_optimizer(recipe: Recipe, network: nn.Module) -> torch.optim.Optimizer:
    """Builds the optimizer, at the highest learning rate, for the parameters that need a gradient.

    Centres and widths of heads have no weight decay. The bias of a `SpeedNet`'s stem learns for some epochs where
    the recipe says so. Each group has its "rate" and "epochs", as in `_Settings`.
    """
    optim, stem_epochs = recipe.optim, recipe.training.stem_epochs
    stem_bias = None
    if stem_epochs is not None:
        if not isinstance(network, SpeedNet):
            expectation = "left out where the network is no SpeedNet"
            raise RecipeError(must_be("training.stem_epochs", expectation, stem_epochs))
        stem_bias = network.stem.bias
    members = defaultdict[_Settings, list[nn.Parameter]](list)
    for path, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        place, _, name = path.rpartition(".")
        settings = _settings(optim, network.get_submodule(place), name)
        if parameter is stem_bias:
            settings = settings._replace(epochs=stem_epochs)
        members[settings].append(parameter)
    groups = [{"params": part, **settings._asdict()} for settings, part in members.items()]
    rate, momentum = optim.learning_rate, optim.momentum
    if optim.algorithm == "adamw":
        return torch.optim.AdamW(groups, lr=rate, betas=(momentum, 0.999))
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=optim.nesterov)


def _settings(recipe: OptimRecipe, module: nn.Module, name: str) -> _Settings:
    """Returns the settings of a module's own parameter."""
    if isinstance(module, Encoding) and name == module.centre_argument:
        return _Settings(0.0, recipe.centre_rate)
    if isinstance(module, Encoding) and name == module.width_parameter:
        return _Settings(0.0, recipe.sharpness_rate)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) and name == "bias":
        rate = recipe.norm_bias_rate
        return _Settings(recipe.weight_decay / rate, rate)
    return _Settings(recipe.weight_decay)


def learning_rate_factor(
    recipe: CosineRecipe | StepsRecipe | TriangleRecipe,
    step: int,
    *,
    epochs: int,
    steps_per_epoch: int,
) -> float:
    """Returns the learning rate of a step as a factor of the highest one, in [0, 1].

    With T steps in all, a cosine rises in a straight line for W = ⌊warmup · T⌋ steps, and is then
    ``½ (1 + cos(π (s − W) / (T − W)))``. Steps multiply by `factor` at each milestone. A triangle goes in straight
    lines from `start` to 1 at step peak · T, and on to `end`.

    Example:
        >>> learning_rate_factor(StepsRecipe(milestones=(2,)), 10, epochs=3, steps_per_epoch=5)
        0.1
    """
    if isinstance(recipe, StepsRecipe):
        return recipe.factor ** sum(epoch * steps_per_epoch <= step for epoch in recipe.milestones)
    total = epochs * steps_per_epoch
    if isinstance(recipe, TriangleRecipe):
        highest = recipe.peak * total
        if step < highest:
            return recipe.start + (1 - recipe.start) * step / highest
        return 1 + (recipe.end - 1) * (step - highest) / (total - highest)
    warmup = int(recipe.warmup * total)
    if step < warmup:
        return step / warmup
    return (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2
