"""From a recipe's sections to the objects that a run uses."""

from typing import Any

import torch
from torch import nn

from convattn.data import ImageDataset, load_cifar10, load_digits
from convattn.models import AttentionNet, ConvNet, ResNet
from convattn.training.heads import quadratic_encodings
from convattn.training.recipe import (
    AttentionNetRecipe,
    ConvNetRecipe,
    CosineRecipe,
    DataRecipe,
    OptimRecipe,
    ResNetRecipe,
    StepsRecipe,
)
from convattn.training.schedule import step_decay, warmup_cosine

__all__ = ["build_network", "build_optimizer", "learning_rate_factor", "load_data"]


def load_data(recipe: DataRecipe) -> ImageDataset:
    """Loads the images that a recipe names.

    Args:
        recipe: The recipe's section.

    Returns:
        The data set, on the CPU.

    Raises:
        DataError: The images cannot be had.
        MissingDependencyError: A package that the images come with is not installed.
    """
    return load_digits() if recipe.name == "digits" else load_cifar10(recipe.folder)


def build_network(
    recipe: AttentionNetRecipe | ConvNetRecipe | ResNetRecipe, data: ImageDataset
) -> AttentionNet | ConvNet | ResNet:
    """Builds a network for the images of a data set.

    Args:
        recipe: The recipe's section.
        data: Where the numbers of channels and classes and the size of the images come from.

    Returns:
        The network, freshly drawn from PyTorch's global random numbers.

    Raises:
        ArgumentError: A size does not fit.
        UnknownNameError: There is no such encoding.
    """
    channels, rows, cols = data.image_shape
    chosen: dict[str, Any] = {key: value for key, value in vars(recipe).items() if key != "kind"}
    fitted: dict[str, Any] = {"num_classes": data.num_classes, "in_channels": channels}
    if isinstance(recipe, AttentionNetRecipe):
        return AttentionNet(**chosen, **fitted, image_size=max(rows, cols))
    if isinstance(recipe, ConvNetRecipe):
        return ConvNet(**chosen, **fitted)
    return ResNet(**chosen, **fitted)


def build_optimizer(recipe: OptimRecipe, network: nn.Module) -> torch.optim.Optimizer:
    """Builds the optimizer; centres and shapes of quadratic encodings are kept from weight decay.

    Args:
        recipe: The recipe's section.
        network: The network to train.

    Returns:
        The optimizer, at the highest learning rate.
    """
    free = [parameter for encoding in quadratic_encodings(network) for parameter in encoding.parameters()]
    kept_free = {id(parameter) for parameter in free}
    decayed = [parameter for parameter in network.parameters() if id(parameter) not in kept_free]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}]
    if free:
        groups.append({"params": free, "weight_decay": 0.0})
    if recipe.algorithm == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(recipe.momentum, 0.999))
    return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.momentum, nesterov=recipe.nesterov)


def learning_rate_factor(recipe: CosineRecipe | StepsRecipe, step: int, *, epochs: int, steps_per_epoch: int) -> float:
    """Returns the learning rate of a step as a factor of the highest one.

    Args:
        recipe: The recipe's section.
        step: Steps done.
        epochs: Epochs of the run.
        steps_per_epoch: Steps of each epoch.

    Returns:
        The factor, in [0, 1].

    Example:
        >>> learning_rate_factor(StepsRecipe(milestones=(2,)), 10, epochs=3, steps_per_epoch=5)
        0.1
    """
    if isinstance(recipe, StepsRecipe):
        milestones = [epoch * steps_per_epoch for epoch in recipe.milestones]
        return step_decay(step, milestones=milestones, factor=recipe.factor)
    total = epochs * steps_per_epoch
    return warmup_cosine(step, total=total, warmup=int(recipe.warmup * total))
