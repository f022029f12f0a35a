import dataclasses
import shutil

import pytest
from tests.lab.run_cases import change_record, copy_run

from convattn.errors import ArgumentError, CheckpointError
from convattn.lab import load_recipe
from convattn.lab.paper_figures import Material
from convattn.lab.paper_table import table_rows
from convattn.lab.runs import find_runs, group_runs, read_curve
from convattn.provenance import RunRecord


@pytest.fixture
def run(runs, tmp_path):
    return copy_run(runs, "sa-quadratic-0", tmp_path)


def change(run, **recipe):
    record = RunRecord.load(run / "record.json")
    dataclasses.replace(record, recipe={**record.recipe, **recipe}).save(run / "record.json")


def test_runs_are_found_two_folders_deep_and_no_deeper(runs, tmp_path):
    for place in ("a", "b/a", "c/b/a", ".hidden"):
        shutil.copytree(runs / "convnet-0", tmp_path / place)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").write_text("no run")
    found = find_runs(tmp_path)
    assert [item.folder for item in found.finished] == [tmp_path / "a", tmp_path / "b/a"]
    assert (found.unfinished, found.unreadable) == ([], [])
    assert [item.folder for item in find_runs(tmp_path / "a").finished] == [tmp_path / "a"]


def test_runs_without_a_record_are_unfinished(run):
    (run / "record.json").unlink()
    found = find_runs(run.parent)
    assert (found.finished, found.unfinished, found.unreadable) == ([], [run], [])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "the text is not JSON"),
        ('{"record": "Certificate", "schema_version": 1}', "not a RunRecord of schema"),
    ],
)
def test_damaged_records_are_unreadable_with_the_reason(run, content, reason):
    (run / "record.json").write_text(content)
    (said,) = find_runs(run.parent).unreadable
    assert said.startswith(f"{run}: ")
    assert reason in said


def test_record_without_accuracy_is_unreadable(run):
    change_record(run, results={"test_loss": 1.0})
    (said,) = find_runs(run.parent).unreadable
    assert said.endswith("the run measured no test images, but test_loss")


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(
        ArgumentError,
        match=r"runs must be a folder that exists, but is '.*nowhere'; .* --train makes it",
    ):
        find_runs(tmp_path / "nowhere")


def test_runs_of_a_recipe_and_scale_are_grouped_by_seed(runs):
    found = find_runs(runs)
    (group,) = group_runs(found.finished, "paper")["sa-quadratic"]
    assert [item.record.seed for item in group.runs] == [0, 1, 2]
    assert (group.first.record.seed, group.repeats) == (0, ())
    assert group_runs(found.finished, "small") == {}


def test_scale_is_taken_from_the_recipe(run):
    change(run, scale="small")
    found = find_runs(run.parent).finished
    assert group_runs(found, "paper") == {}
    assert len(group_runs(found, "small")["sa-quadratic"]) == 1


def test_the_same_seed_counts_once(run):
    shutil.copytree(run, run.parent / "again")
    (group,) = group_runs(find_runs(run.parent).finished, "paper")["sa-quadratic"]
    assert (
        [item.folder.name for item in group.runs],
        [item.folder.name for item in group.repeats],
    ) == (
        ["again"],
        ["sa-quadratic-0"],
    )


@pytest.mark.parametrize("difference", ["settings", "data"])
def test_runs_of_other_settings_or_data_are_not_mixed(run, difference):
    other = shutil.copytree(run, run.parent / "other")
    if difference == "settings":
        change(other, training={"epochs": 99})
    else:
        record = RunRecord.load(other / "record.json")
        dataclasses.replace(
            record, data=dataclasses.replace(record.data, hashes={"train": "0"})
        ).save(other / "record.json")
    change_record(other, seed=1)
    groups = group_runs(find_runs(run.parent).finished, "paper")["sa-quadratic"]
    assert {tuple(item.folder for item in group.runs) for group in groups} == {(other,), (run,)}


def test_the_run_with_the_fewest_changes_is_first(run):
    other = shutil.copytree(run, run.parent / "other")
    change_record(other, recipe=load_recipe("sa-quadratic").to_dict())
    first, second = group_runs(find_runs(run.parent).finished, "paper")["sa-quadratic"]
    assert (first.first.folder, second.first.folder) == (other, run)


def test_folders_and_claims_make_no_difference(run):
    other = shutil.copytree(run, run.parent / "other")
    data = {**RunRecord.load(run / "record.json").recipe["data"], "name": "cifar10"}
    change(run, data=data)
    change(other, claim="another", seed=1, data={**data, "folder": "elsewhere"})
    change_record(other, seed=1)
    (group,) = group_runs(find_runs(run.parent).finished, "paper")["sa-quadratic"]
    assert len(group.runs) == 2


def test_changes_are_those_to_the_recipe_of_today(run):
    """The command is that of a time when the recipe may have had other values."""
    own = load_recipe("sa-quadratic", overrides={"seed": "3", "data.folder": "f"}).to_dict()
    change_record(run, recipe=own, command="convattn train sa-quadratic --set training.epochs=2")
    assert find_runs(run).finished[0].changes == ()
    other = load_recipe("sa-quadratic", scale="small", overrides={"training.epochs": "2"})
    change_record(run, recipe=other.to_dict())
    assert find_runs(run).finished[0].changes == ("training.epochs=2",)
    change_record(run, recipe={**own, "name": "mine"})
    assert find_runs(run).finished[0].changes == ("by its own recipe.toml",)


def test_a_recipe_of_another_version_cannot_be_read(run):
    recipe = RunRecord.load(run / "record.json").recipe
    change_record(run, recipe={**recipe, "data": {**recipe["data"], "cutout": 0}})
    (reason,) = find_runs(run).unreadable
    assert "record.json: recipe: unknown key 'data.cutout'" in reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "FileNotFoundError"),
        ("{", "JSONDecodeError"),
        (100_000 * "[", "RecursionError"),
        ('{"epoch": 1e999, "test_accuracy": 1}', "OverflowError"),
        ('{"epoch": 1}', "KeyError"),
        ("", "it holds no epoch"),
    ],
)
def test_damaged_metrics_are_refused(run, content, reason):
    (run / "metrics.jsonl").unlink()
    if content is not None:
        (run / "metrics.jsonl").write_text(content)
    (found,) = find_runs(run).finished
    with pytest.raises(
        CheckpointError, match=rf"cannot read metrics from .*metrics\.jsonl: {reason}"
    ):
        read_curve(found.folder)


def test_pruning_that_removed_no_head_is_said_in_row_and_title(run):
    """The network has three heads in each block; only a run that was to prune says so."""
    said = "; no head was degenerate"
    for heads, prune, words in ((3, True, said), (5, True, ""), (3, False, "")):
        model = RunRecord.load(run / "record.json").recipe["model"]
        change(run, model={**model, "heads": heads}, start={"recipe": "other", "prune": prune})
        (group,) = group_runs(find_runs(run.parent).finished, "paper")["sa-quadratic"]
        assert group.first.pruned == words
    change(run, model={**model, "heads": 3}, start={"recipe": "other", "prune": True})
    (group,) = group_runs(find_runs(run.parent).finished, "paper")["sa-quadratic"]
    rows, _ = table_rows({"sa-quadratic": [group]})
    assert f"SA quadratic{said}" in [row["model"] for row in rows]
    title = Material({"sa-quadratic": [group]}, "paper").title("fig13", "heads", "sa-quadratic")
    assert title.startswith(f"Figure 13: heads{said}\n")
