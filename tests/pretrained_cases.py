"""A trained network that takes a moment to make, and the script that makes the folders of such networks."""

import runpy
from pathlib import Path

from convattn.data import CIFAR10_MEAN, CIFAR10_STD, ImageDataset, load_samples
from convattn.lab import Recipe, train
from convattn.lab.recipe import DataRecipe, OptimRecipe, SpeedNetRecipe, TrainingRecipe
from convattn.networks.pretrained import PretrainedCard
from convattn.provenance import DataRecord, RunRecord

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "pretrained.py"))


def sample_data() -> ImageDataset:
    """The embedded images of CIFAR-10, to learn from and to be tested on."""
    split = load_samples().split
    record = DataRecord(
        "cifar10 (samples)",
        "the package",
        {"both": split.sha256()},
        {"train": 20, "test": 20},
        "the same twice",
    )
    return ImageDataset(split, split, 10, CIFAR10_MEAN, CIFAR10_STD, record)


def short_recipe() -> Recipe:
    """One epoch of a narrow network."""
    return Recipe(
        "short",
        claim="none",
        model=SpeedNetRecipe(widths=(4, 6)),
        data=DataRecipe("cifar10"),
        optim=OptimRecipe(learning_rate=0.1, centre_rate=2.0),
        training=TrainingRecipe(epochs=1, batch_size=10, test_views="mirror"),
    )


def short_run(folder: Path) -> RunRecord:
    """Trains it."""
    return train(short_recipe(), output=folder, data=sample_data(), progress=False)


def made_by_script(place: Path) -> PretrainedCard:
    """Trains it in a folder's "run", and makes the folder "short" of it."""
    short_run(place / "run")
    return SCRIPT["store"](
        place / "run", place / "short", sample_data(), "python scripts/pretrained.py run short"
    )
