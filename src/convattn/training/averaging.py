"""Averages of the weights over the steps of a run: a moving one, or one to which the weights return."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from convattn.training.recipe import LookaheadRecipe, Recipe


def make_average(network: nn.Module, recipe: Recipe, total: int) -> AveragedModel | None:
    """Makes the average of a network's weights that a recipe asks for.

    Args:
        network: The network.
        recipe: The recipe.
        total: Steps of the run.

    Returns:
        The average, which is a copy of the network so far; None if the recipe asks for none.
    """
    if recipe.lookahead is not None:
        return AveragedModel(network, multi_avg_fn=_return_to(recipe.lookahead, total), use_buffers=True)
    decay = recipe.training.ema
    return None if decay is None else AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))


def update_average(average: AveragedModel, network: nn.Module, recipe: Recipe, *, step: int, total: int) -> None:
    """Updates an average after a step; a lookahead every few steps and after the last, and takes the network to it.

    Args:
        average: The average.
        network: The network; with a lookahead its weights and running statistics become those of the average.
        recipe: The recipe.
        step: Steps done.
        total: Steps of the run.
    """
    if recipe.lookahead is None:
        average.update_parameters(network)
    elif step % recipe.lookahead.steps == 0 or step == total:
        average.update_parameters(network)
        for own, averaged in zip(network.state_dict().values(), average.module.state_dict().values(), strict=True):
            own.copy_(averaged)


def lookahead_decay(recipe: LookaheadRecipe, step: int, total: int) -> float:
    """Returns the share of the average that is kept at a step: ``decay^steps · (s / T)³``.

    Args:
        recipe: The recipe's section.
        step: s, steps done.
        total: T, all steps.

    Returns:
        The share, in [0, 1).

    Example:
        >>> lookahead_decay(LookaheadRecipe(steps=1, decay=0.8), 5, 10)
        0.1
    """
    return recipe.decay**recipe.steps * (step / total) ** 3


def _return_to(recipe: LookaheadRecipe, total: int) -> Callable[[Any, Any, Any], None]:
    """Returns the update of an average; the first update of an `AveragedModel`, before it is called, is a copy."""

    def update(averages: list[Tensor], weights: list[Tensor], number: Tensor) -> None:
        decay = lookahead_decay(recipe, min(recipe.steps * (int(number) + 1), total), total)
        for average, weight in zip(averages, weights, strict=True):
            if average.is_floating_point():
                average.lerp_(weight, 1 - decay)
            else:
                average.copy_(weight)

    return torch.no_grad()(update)
