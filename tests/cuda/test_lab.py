"""Training on a CUDA device: its losses, what is recorded, and what it gives back."""

import dataclasses
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradScalerKwargs
from tests.lab.resuming import RECIPE, cut_off, resume, timeless
from tests.lab.tiny import references_of_runs, tiny_data, tiny_recipe, tiny_speed_recipe

from convattn.budget import Sums, assert_within_budget
from convattn.lab import train
from convattn.lab.recipe import DataRecipe, ResNetRecipe
from convattn.lab.trainer import Batches, Trainer
from convattn.provenance import RunRecord


@pytest.fixture(autouse=True)
def new_accelerator():
    """Lets a test begin on the device, whatever the process has trained on; another test may train on another."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def losses(recipe, device, precision="no"):
    """Trains for an epoch and returns its losses, of training and of the test images."""
    AcceleratorState._reset_state(reset_partial_state=True)
    small = GradScalerKwargs(
        init_scale=2.0**8
    )  # With torch's 2 ** 16 the first steps may be left out
    accelerator = Accelerator(
        cpu=device.type == "cpu", mixed_precision=precision, kwargs_handlers=[small]
    )
    made = Trainer(recipe, tiny_data(), accelerator)
    metrics = made.run_epoch()
    assert next(made.network.parameters()).device.type == device.type
    return torch.tensor([metrics["train_loss"], metrics["test_loss"]], dtype=torch.float64)


NOT_ON_THE_CPU = {"fp16": "there accelerate trains in float32 without a word"}
"""Precisions in which nothing is trained on the CPU, and why."""

RECIPES = {
    "attention": tiny_recipe(),
    "speed": tiny_speed_recipe(),
    "resnet": dataclasses.replace(tiny_recipe(), model=ResNetRecipe(blocks_per_stage=1, width=3)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_an_epoch_has_the_losses_of_one_on_the_cpu(device, name):
    run = partial(losses, RECIPES[name])
    hi, lows = references_of_runs(partial(run, torch.device("cpu")))
    sums = Sums(10, hi)  # a loss is the mean over ten images or more
    assert_within_budget(run(device).float(), hi, [low.float() for low in lows], name, sums=sums)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)], ids=str
)
def test_an_epoch_in_mixed_precision_has_its_losses_up_to_the_digits_that_are_missing(
    device, precision, dtype
):
    run = partial(losses, tiny_recipe())
    hi, lows = references_of_runs(partial(run, torch.device("cpu")), dtype)
    actual = run(device, precision)
    wide = device.type == "cpu" and precision in NOT_ON_THE_CPU
    assert torch.equal(actual, lows[0]) is wide, NOT_ON_THE_CPU.get(precision)
    narrow = [low.to(dtype) for low in lows]
    assert_within_budget(actual.to(dtype), hi, narrow, precision, sums=Sums(10, hi))


def test_batches_are_those_of_the_cpu(device):
    recipe = DataRecipe("digits", crop_padding=2, crop_border="reflect", flip=True)
    made = [Batches(tiny_data(), recipe, size=7, seed=1, device=place) for place in ("cpu", device)]
    for epoch in range(2):
        both = zip(*[batches.of_epoch(epoch) for batches in made], strict=True)
        for (images, targets), (there, targets_there) in both:
            assert torch.equal(there.cpu(), images)
            assert torch.equal(targets_there.cpu(), targets)
            assert there.device.type == device.type


def test_a_run_records_its_settings_and_leaves_the_process_as_it_was(device, tmp_path, monkeypatch):
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, torch.get_rng_state()
    train(RECIPE, output=tmp_path / "whole", data=tiny_data(), progress=False)
    hardware = RunRecord.load(tmp_path / "whole" / "record.json").hardware
    assert hardware["device"] == device.type
    settings = ("memory_format", "cudnn_benchmark", "tf32_products", "tf32_convolutions")
    if device.type == "cuda":
        expected = ["channels_last", "True", "False", "False"]
        assert [hardware[name] for name in settings] == expected
    else:
        assert not hardware.keys() & set(settings)
    assert cudnn.benchmark is before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    cut_off(monkeypatch, tmp_path / "run", step=3)
    resume(tmp_path / "run")
    steps = [[row["step"] for row in timeless(tmp_path / name)[1]] for name in ("whole", "run")]
    assert steps[0] == steps[1]
