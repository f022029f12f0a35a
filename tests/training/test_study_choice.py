"""A study on held-out images, and the study that takes its best variants; training is replaced as in `test_study`."""

import dataclasses
import json

import pytest
from tests.training.study_fake import FakeTrain

from convattn.errors import ArgumentError, CheckpointError
from convattn.lab import load_recipe, study
from convattn.lab.study_engines import LocalEngine
from convattn.lab.study_plan import plan_runs
from convattn.lab.study_record import (
    StudyCandidate,
    StudyChoice,
    StudyRecord,
    Summary,
    _at_an_end,
    read_search,
    search_warnings,
)

NAME, KEY, RATES = "digits-quadratic", "optim.learning_rate", ("1e-3", "3e-3", "9e-3")


def run(folder, *, failing=(), **options):
    engine = LocalEngine(threads=1, command=FakeTrain(failing=failing), workers=3)
    return study(options.pop("recipes", [NAME]), output=folder, engine=engine, **options)


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    return folder, run(folder, seeds=(0,), grid={KEY: RATES}, overrides={"data.held_out": "400"})


def with_accuracies(search, folder, *accuracies):
    """Writes the search again, its variants with other accuracies."""
    groups = [
        dataclasses.replace(group, accuracy=Summary(1, value, None, value, value))
        for group, value in zip(search[1].groups, accuracies, strict=True)
    ]
    dataclasses.replace(search[1], groups=tuple(groups)).save(folder / "study.json")
    for item in search[1].runs:
        (folder / item.folder).symlink_to(search[0] / item.folder)
    return folder


def test_search_measures_validation_images(search):
    folder, record = search
    assert record.measured == "validation"
    assert record.summary().startswith("on held-out training images:\n")
    page = (folder / "study.md").read_text()
    assert "| recipe | n | validation accuracy |" in page
    assert "Validation accuracy less the baseline's" in page
    assert "est accuracy" not in page


def test_best_variant_is_taken_and_the_choice_is_in_record_and_page(search, tmp_path):
    place = with_accuracies(search, tmp_path, 0.5, 0.75, 0.25)
    record = run(tmp_path / "table", seeds=(0, 1), chosen=place)
    rates = [
        load_recipe(tmp_path / "table" / each.folder / "recipe.toml").optim.learning_rate
        for each in record.runs
    ]
    assert rates == [3e-3, 3e-3]
    assert [group.label for group in record.groups] == [NAME]
    assert (record.measured, record.warnings) == ("test", ())
    assert record.search is not None
    (choice,) = record.search.choices
    assert (choice.label, choice.values) == (NAME, {KEY: "3e-3"})
    tried = [(item.values[KEY], item.accuracy, item.failed) for item in choice.candidates]
    expected = zip(RATES, (0.5, 0.75, 0.25), strict=True)
    assert tried == [(rate, Summary(1, value, None, value, value), ()) for rate, value in expected]
    assert record.command.endswith(f"--chosen {place}")
    assert StudyRecord.load(tmp_path / "table" / "study.json") == record
    page = (tmp_path / "table" / "study.md").read_text()
    assert f"| {NAME} | {KEY}=3e-3 | 75.00 % | **chosen** |" in page
    assert f"| {NAME} | {KEY}=1e-3 | 50.00 % |  |" in page
    assert record.search.study_sha256 in page
    assert f"{NAME}: chosen {KEY}=3e-3, of 3 tried on held-out images" in record.summary()


def test_among_equals_the_first_counts_and_the_end_of_the_list_is_told(search, tmp_path):
    place = with_accuracies(search, tmp_path, 0.5, 0.25, 0.5)
    record = run(tmp_path / "table", seeds=(0,), chosen=place)
    assert record.search is not None
    assert record.search.choices[0].values == {KEY: "1e-3"}
    assert record.warnings == (
        f"{NAME}: the chosen {KEY}=1e-3 is the smallest of those tried; one beyond it was not tried",
    )


def test_settings_that_the_search_had_not_are_told(search, tmp_path):
    place = with_accuracies(search, tmp_path, 0.5, 0.75, 0.25)
    record = run(tmp_path / "table", seeds=(0,), chosen=place, overrides={"training.epochs": "7"})
    assert record.warnings == (f"{NAME}: in the search, training.epochs is 45, not 7",)


def test_variant_that_failed_is_not_chosen_and_stays_in_the_record(tmp_path):
    lost = f"{NAME}[{KEY}=3e-3]"
    grid, held = {KEY: RATES[1:]}, {"data.held_out": "400"}
    first = run(tmp_path / "search", seeds=(0,), grid=grid, overrides=held)
    folder = next(item.folder for item in first.runs if item.label == lost)
    (tmp_path / "search" / folder / "record.json").unlink()
    (tmp_path / "search" / folder / "checkpoints" / "last").write_bytes(b"\0")
    run(tmp_path / "search", seeds=(0,), grid=grid, overrides=held, failing=(folder,))
    (choice,) = read_search(tmp_path / "search")[1].choices
    assert choice.values == {KEY: "9e-3"}
    assert {item.values[KEY]: item.failed for item in choice.candidates} == {
        "3e-3": ("cannot do epoch 0",),
        "9e-3": (),
    }
    warned = run(tmp_path / "table", seeds=(0,), chosen=tmp_path / "search").warnings
    assert f"{NAME}: {KEY}=3e-3 was not eligible, because a run of it failed" in warned
    record = StudyRecord.load(tmp_path / "search" / "study.json")
    dataclasses.replace(record, groups=()).save(tmp_path / "search" / "study.json")
    with pytest.raises(
        CheckpointError, match=f"^no variant of {NAME} has finished all of its runs"
    ):
        read_search(tmp_path / "search")


def test_wrong_searches_are_refused_before_anything_runs(search, tmp_path):
    with pytest.raises(CheckpointError, match="cannot read StudyRecord"):
        run(tmp_path / "table", chosen=tmp_path)
    with pytest.raises(
        ArgumentError, match=f"^chosen must be a study of convnet as well, but is '{NAME}'$"
    ):
        run(tmp_path / "table", recipes=["convnet"], chosen=search[0])
    for given in ({"overrides": {KEY: "1"}}, {"grid": {KEY: ("1",)}}):
        with pytest.raises(
            ArgumentError,
            match=f"^the key {KEY} is chosen by a study, and given in overrides or grid",
        ):
            run(tmp_path / "table", chosen=search[0], **given)
    record = json.loads((search[0] / "study.json").read_text())
    record["data"]["counts"] = {"train": 5, "test": 3}
    (tmp_path / "study.json").write_text(json.dumps(record))
    with pytest.raises(
        ArgumentError, match=r"^chosen must be a study of runs with data\.held_out, but is "
    ):
        run(tmp_path / "table", chosen=tmp_path)
    assert not (tmp_path / "table").exists()


def test_a_search_without_a_grid_is_refused(tmp_path):
    run(tmp_path / "search", seeds=(0,), overrides={"data.held_out": "400"})
    with pytest.raises(ArgumentError, match=r"^chosen must be a study with a grid, but is "):
        run(tmp_path / "table", chosen=tmp_path / "search")


def test_damaged_searches_are_refused_and_what_is_not_finite_is_not_chosen(search, tmp_path):
    place = with_accuracies(search, tmp_path, float("nan"), 0.25, 0.5)
    assert read_search(place)[1].choices[0].values == {KEY: "9e-3"}
    for item in search[1].runs:
        (place / item.folder).unlink()
    with pytest.raises(
        CheckpointError, match=r"^cannot read a run of the study .*: .*No such file"
    ):
        run(tmp_path / "table", chosen=place)
    for change, message in (
        ({"runs": ()}, "is damaged: it lists no run of"),
        ({"data": None}, "^no run of .* finished"),
    ):
        dataclasses.replace(search[1], **change).save(place / "study.json")
        with pytest.raises(CheckpointError, match=message):
            run(tmp_path / "table", chosen=place)


def test_search_whose_runs_changed_is_refused(search, tmp_path):
    place = with_accuracies(search, tmp_path, 0.5, 0.75, 0.25)
    for item in search[1].runs:
        (place / item.folder).unlink()
        (place / item.folder).mkdir()
        (place / item.folder / "record.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match="has changed since its study: give the study's command again"
    ):
        run(tmp_path / "table", chosen=place)


def test_recipes_of_a_search_that_are_not_run_leave_no_doubt(search, tmp_path):
    place = with_accuracies(search, tmp_path, 0.5, 0.25, 0.25)
    record, found = read_search(place)
    options = {"seeds": (0,), "scale": None, "overrides": {KEY: "1e-3"}, "grid": {}}
    runs = {name: plan_runs([name], tmp_path, **options) for name in (NAME, "convnet")}
    assert search_warnings(place, record, found, runs["convnet"]) == []
    assert len(search_warnings(place, record, found, runs[NAME])) == 1


def test_words_have_no_smallest_and_no_largest():
    tried = [{"optim.algorithm": word, KEY: rate} for word, rate in (("adamw", "1"), ("sgd", "3"))]
    choice = StudyChoice(
        NAME, tried[1], tuple(StudyCandidate(values, None, ()) for values in tried)
    )
    assert _at_an_end(choice) == [
        f"{KEY}=3 is the largest of those tried; one beyond it was not tried"
    ]
