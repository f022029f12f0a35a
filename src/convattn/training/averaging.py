"""Averages of the weights over the steps of a run: a moving one, or one to which the weights return."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from convattn.training.recipe import LookaheadRecipe, Recipe


def make_average(network: nn.Module, recipe: Recipe, total: int) -> AveragedModel | None:
    """Returns the average of the weights that a recipe asks for, at first a copy of the network; None without one."""
    if recipe.lookahead is not None:
        return AveragedModel(network, multi_avg_fn=_return_to(recipe.lookahead, total), use_buffers=True)
    decay = recipe.training.ema
    return None if decay is None else AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))


def update_average(average: AveragedModel, network: nn.Module, recipe: Recipe, *, step: int, total: int) -> None:
    """Updates an average after a step; a lookahead only every few steps, and then the network takes its values."""
    if recipe.lookahead is None:
        average.update_parameters(network)
    elif step % recipe.lookahead.steps == 0 or step == total:
        average.update_parameters(network)
        for own, averaged in zip(network.state_dict().values(), average.module.state_dict().values(), strict=True):
            own.copy_(averaged)


def lookahead_decay(recipe: LookaheadRecipe, step: int, total: int) -> float:
    """Returns the share of the average that is kept at step s of T: ``decay^steps · (s / T)³``.

    Example:
        >>> lookahead_decay(LookaheadRecipe(steps=1, decay=0.8), 5, 10)
        0.1
    """
    return recipe.decay**recipe.steps * (step / total) ** 3


def _return_to(recipe: LookaheadRecipe, total: int) -> Callable[[Any, Any, Any], None]:
    """Returns the update of an average; before its first call, `AveragedModel` copies the weights."""

    def update(averages: list[Tensor], weights: list[Tensor], number: Tensor) -> None:
        decay = lookahead_decay(recipe, min(recipe.steps * (int(number) + 1), total), total)
        for average, weight in zip(averages, weights, strict=True):
            if average.is_floating_point():
                average.lerp_(weight, 1 - decay)
            else:
                average.copy_(weight)

    return torch.no_grad()(update)
