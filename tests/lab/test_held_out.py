"""Runs that measure held-out training images in place of the test images."""

import dataclasses
import json

import pytest
import torch
from tests.lab.test_resume import cut_off, resume, timeless
from tests.lab.tiny import tiny_data, tiny_recipe

from convattn.data import ImageSplit
from convattn.errors import ArgumentError
from convattn.lab import train
from convattn.lab.runs import find_runs

PLAIN = tiny_recipe(epochs=2, dropout=0.2)
RECIPE = dataclasses.replace(PLAIN, data=dataclasses.replace(PLAIN.data, held_out=10))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held out") / "run"
    told = []
    return (
        folder,
        train(RECIPE, output=folder, data=tiny_data(), progress=False, tell=told.append),
        told,
    )


def test_record_and_metrics_name_the_validation_images_and_no_test_images(run):
    folder, record, told = run
    assert record.data.counts == {"train": 30, "validation": 10}
    assert (record.measured, record.accuracy) == (
        "validation",
        record.results["validation_accuracy"],
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6]
    for numbers in (record.results, *lines):
        assert {"validation_accuracy", "validation_loss"} < numbers.keys()
        assert not any("test" in name for name in numbers)
    assert ", validation " in told[0]
    assert "validation accuracy " in record.summary()
    card = (folder / "README.md").read_text()
    assert f"Validation accuracy **{record.accuracy:.2%}**" in card
    assert "the test split was not used" in card


def test_test_images_change_nothing(run, tmp_path):
    data = tiny_data()
    noise = ImageSplit(torch.full_like(data.test.images, 7), 1 - data.test.labels)
    train(
        RECIPE, output=tmp_path / "run", data=dataclasses.replace(data, test=noise), progress=False
    )
    assert timeless(tmp_path / "run") == timeless(run[0])


def test_run_cut_off_ends_with_the_same_bits(run, monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=4, recipe=RECIPE)
    resume(tmp_path / "run", RECIPE)
    assert timeless(tmp_path / "run") == timeless(run[0])


def test_it_shows_in_no_table_of_test_accuracies(run):
    found = find_runs(run[0])
    assert found.finished == []
    measured = "validation_accuracy, validation_loss, train_loss, images_per_second"
    assert found.unreadable[0].endswith(f"the run measured no test images, but {measured}")


def test_recipes_without_it_are_as_before():
    assert "held_out" not in PLAIN.to_dict()["data"]


def test_some_training_images_must_be_left():
    recipe = dataclasses.replace(RECIPE, data=dataclasses.replace(RECIPE.data, held_out=40))
    with pytest.raises(
        ArgumentError, match=r"^held_out must be from 1 to 39, to leave some to train, but is 40$"
    ):
        train(recipe, data=tiny_data(), progress=False)
