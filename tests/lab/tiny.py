"""A data set and a recipe so small that a run takes a moment."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from convattn.budget import LEAST_ROUNDINGS, rounded_differently
from convattn.data import ImageDataset, ImageSplit, normalise
from convattn.lab import Recipe, run_setup, trainer
from convattn.lab import trainer as batches
from convattn.lab.recipe import (
    AttentionNetRecipe,
    DataRecipe,
    LookaheadRecipe,
    OptimRecipe,
    SpeedNetRecipe,
    TrainingRecipe,
    TriangleRecipe,
)
from convattn.provenance import DataRecord


def tiny_data(train: int = 40, test: int = 10) -> ImageDataset:
    """Two classes of 6 x 6 grey images: bright above, or bright below."""
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> ImageSplit:
        labels = torch.arange(count) % 2
        images = torch.randint(0, 80, (count, 1, 6, 6), generator=generator)
        for image, label in zip(images, labels, strict=True):
            image[0, 3 * label : 3 * label + 3] += 150
        return ImageSplit(images.to(torch.uint8), labels)

    record = DataRecord(
        "halves", "made by the tests", {}, {"train": train, "test": test}, "in order"
    )
    return ImageDataset(
        split(train), split(test), num_classes=2, mean=(0.4,), std=(0.3,), record=record
    )


def tiny_recipe(
    *, epochs: int = 2, learning_rate: float = 0.01, seed: int = 0, **model: object
) -> Recipe:
    """AdamW on a one-block quadratic network."""
    sizes = {
        "width": 8,
        "depth": 1,
        "heads": 3,
        "ffn": 8,
        "patch": 1,
        "dropout": 0.0,
        "initializer_range": 0.1,
    }
    return Recipe(
        "tiny",
        claim="none",
        seed=seed,
        model=AttentionNetRecipe(**{**sizes, **model}),
        data=DataRecipe("digits", crop_padding=1, flip=True),
        optim=OptimRecipe(algorithm="adamw", learning_rate=learning_rate),
        training=TrainingRecipe(epochs=epochs, batch_size=8),
    )


def references_of_runs(
    run: Callable[[], Tensor], dtype: torch.dtype = torch.float32
) -> tuple[Tensor, list[Tensor]]:
    """Computes what a run leaves: in float64, and from images and weights of other last digits, which are a dtype's."""
    single = run_setup.build_network

    def changed(change: Callable) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            for module in (batches, trainer):
                patch.setattr(module, "normalise", lambda *given: change(normalise(*given)))
            patch.setattr(trainer, "build_network", lambda *given: change(single(*given)))
            return run()

    def moved(seed: int, given: Tensor | nn.Module) -> Tensor | nn.Module:
        return rounded_differently(given.to(dtype), seed).float()

    hi = changed(lambda given: given.double())
    return hi, [run(), *(changed(partial(moved, seed)) for seed in range(LEAST_ROUNDINGS))]


def tiny_speed_recipe(*, epochs: int = 2, **model: object) -> Recipe:
    """Everything that the recipe "speedrun" uses, on a network of two narrow stages."""
    return Recipe(
        "tiny",
        claim="none",
        model=SpeedNetRecipe(**{"widths": (4, 6), **model}),
        data=DataRecipe(
            "digits", crop_padding=1, crop_border="reflect", flip=True, alternate_flip=True
        ),
        optim=OptimRecipe(
            learning_rate=0.2,
            momentum=0.85,
            nesterov=True,
            weight_decay=1e-3,
            centre_rate=0.5,
            sharpness_rate=0.25,
            norm_bias_rate=8.0,
        ),
        schedule=TriangleRecipe(),
        training=TrainingRecipe(
            epochs=epochs,
            batch_size=8,
            label_smoothing=0.2,
            stem_epochs=1,
            test_views="mirror",
        ),
        lookahead=LookaheadRecipe(steps=3),
    )
