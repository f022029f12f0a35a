"""What training will take on this machine, measured by a step before it starts."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from convattn.errors import ArgumentError, ConvAttnError
from convattn.lab.recipe import DataRecipe, Recipe, StartRecipe
from convattn.lab.run_setup import build_network, build_optimizer, load_data, training_device
from convattn.networks.datasets import ImageDataset
from convattn.networks.pictures import normalise
from convattn.random_numbers import keep_random_state

_HOUR = 3600
_FEW, _LONG = 16, 4.0
"""Images of the first steps; if all images would take more seconds than that, the time is in proportion."""


class RunCost(NamedTuple):
    """What a run takes, by one of its steps."""

    steps: int  # Steps of all epochs
    step_seconds: float  # Time of a step
    memory: int  # Bytes of images, weights, gradients, the optimizer's state, and what a step keeps for its gradients


def announce(
    recipes: Sequence[Recipe], tell: Callable[[str], None], *, yes: bool, workers: int = 1
) -> None:
    """Says what runs will take before they start, and has more than an hour confirmed in a terminal.

    Args:
        recipes: The recipe of each run.
        tell: Called with a line of text for the runs that differ in the seed alone, and with one for all.
        yes: Whether it was confirmed.
        workers: Runs at a time.

    Raises:
        ArgumentError: It will take more than an hour, there is a terminal, and it was not confirmed.
    """
    if "RANK" in os.environ:  # of several processes, each of which takes a share of a step
        return
    seconds = 0.0
    loaded: dict[DataRecipe, ImageDataset] = {}
    for recipe, count in Counter(replace(recipe, seed=0) for recipe in recipes).items():
        try:
            if recipe.data not in loaded:
                loaded[recipe.data] = load_data(recipe.data)
            cost = measure_cost(recipe, loaded[recipe.data])
        except (ConvAttnError, RuntimeError):  # the run itself will say why
            if len(recipes) > 1:
                tell(f"{recipe.name}: could not be measured")
            continue
        torch.cuda.empty_cache()  # which the runs may need
        of_run = cost.steps * cost.step_seconds
        size = f"{cost.memory / 2**20:,.0f} MiB"
        step = f"{cost.steps:,} steps of {cost.step_seconds:.2g} s on this machine"
        tell(f"{recipe.name}: {step}, {in_words(of_run)}; {size}")
        seconds += count * of_run / min(workers, len(recipes))
    if len(recipes) > 1:
        tell(f"all {len(recipes)} runs: {in_words(seconds)}")
    in_terminal = sys.stdin is not None and sys.stdin.isatty()
    if seconds > _HOUR and not yes and in_terminal:
        raise ArgumentError(f"this takes about {in_words(seconds)}: --yes starts it")


def in_words(seconds: float) -> str:
    """Writes a time in the unit that suits it.

    Example:
        >>> in_words(90.0), in_words(5000.0)
        ('90 s', '1.4 hours')
    """
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < _HOUR else f"{seconds / _HOUR:,.1f} hours"


def measure_cost(recipe: Recipe, data: ImageDataset) -> RunCost:
    """Measures a step of a recipe's network with new weights; random numbers are left as they were."""
    device = training_device()
    training, size = recipe.training, recipe.training.batch_size
    narrow = torch.float16 if training.precision == "fp16" else torch.bfloat16
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with keep_random_state():
        network = build_network(replace(recipe, start=StartRecipe()), data).to(device).train()
        optimizer = build_optimizer(recipe, network)
        few = min(_FEW, size)
        for step, count in ((0, few), (1, few), (2, size)):
            images = normalise(data.train.images[:count], data.mean, data.std).to(device)
            labels = data.train.labels[:count].to(device)
            kept.clear()
            began = time.perf_counter()
            with (
                torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
                torch.autocast(device.type, narrow, enabled=training.precision != "no"),
            ):
                loss = F.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            loss.item()  # waits for a GPU
            scale = size / count
            seconds = (time.perf_counter() - began) * scale
            if step and seconds > _LONG:  # the first step is slower, and says nothing
                break
    weights = 4 * sum(one.nbytes for one in network.parameters())  # gradients and two moments, too
    memory = weights + data.train.images.nbytes + scale * sum(kept.values())
    return RunCost(training.epochs * (len(data.train) // size), seconds, round(memory))
