"""Each table and figure out of tiny runs: what is made, that the numbers are the runs', and what is said otherwise."""

import json
import shutil
import statistics
from itertools import groupby
from xml.etree import ElementTree as ET

import pytest
from pyarrow import parquet
from tests.lab.run_cases import RECIPES, change_record, copy_run, make_run

from convattn import load_network
from convattn.data import load_digits, normalise
from convattn.errors import ArgumentError, TrainingError, UnknownNameError
from convattn.lab import paper_figures
from convattn.lab.paper_figures import attention_grid
from convattn.lab.reproduction import TARGETS, Reproduction, reproduce
from convattn.provenance import RunRecord

DRAWN = ("fig5", "fig7", "fig8")
ON_ONE_IMAGE = ("fig8", "fig9", "fig10")


def draw_nothing(paths, *_, **__):
    """In place of `attention_grid`: empty files."""
    for path in paths:
        path.touch()


@pytest.fixture(scope="module")
def made(runs, tmp_path_factory):
    """Everything, made once; of attention a figure of each kind is drawn, and of the others the numbers alone."""

    def draw(paths, *given, **options):
        drawn = paths[0].stem in DRAWN
        (attention_grid if drawn else draw_nothing)(paths, *given, **options)

    folder = tmp_path_factory.mktemp("made") / "all"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_figures, "attention_grid", draw)
        return reproduce(list(TARGETS), runs, folder), folder


def rows_of(path):
    return json.loads(path.read_text())


def test_everything_is_complete_and_said(made):
    result, folder = made
    assert result.complete
    assert result.missing == ()
    assert [item.target for item in result.targets] == list(TARGETS)
    assert Reproduction.load(folder / "reproduction.json") == result
    listed = {file for item in result.targets for file in item.files} | {"reproduction.json"}
    assert {item.name for item in folder.iterdir()} == listed


@pytest.mark.parametrize(
    "target", [name for name in TARGETS if name not in {"table1", "fig6", "fig9", "fig10"}]
)
def test_figure_is_drawn_for_screen_and_print_with_its_numbers(made, target):
    result, folder = made
    (found,) = (item for item in result.targets if item.target == target)
    assert sorted(found.files) == sorted([f"{target}.png", f"{target}.svg", f"{target}.parquet"])
    assert (folder / f"{target}.png").read_bytes().startswith(b"\x89PNG")
    assert ET.parse(folder / f"{target}.svg").getroot().tag.endswith("svg")


def test_table_has_the_numbers_of_the_runs(made, runs):
    rows = {row["recipe"]: row for row in rows_of(made[1] / "table1.json")}
    assert list(rows) == list(RECIPES)
    for recipe, row in rows.items():
        record = RunRecord.load(runs / f"{recipe}-0" / "record.json")
        assert row["parameters"] == record.parameters
        assert row["data"] == record.data.name
        assert record.hardware["processor"] in row["hardware"]
        if recipe != "sa-quadratic":
            assert (row["n"], row["accuracy_std"]) == (1, None)
            assert row["accuracy"] == record.results["test_accuracy"]
            assert row["seconds"] == record.seconds
        network = load_network(runs / f"{recipe}-0")
        assert row["flops_linear"] == network.flops(8).linear
        assert row["flops_total"] == network.flops(8).total


def test_seeds_are_averaged(made, runs):
    folders = ("sa-quadratic-0", "sa-quadratic-1", "deeper/sa-quadratic-2")
    records = [RunRecord.load(runs / folder / "record.json") for folder in folders]
    accuracies = [record.results["test_accuracy"] for record in records]
    (row,) = (row for row in rows_of(made[1] / "table1.json") if row["recipe"] == "sa-quadratic")
    assert (row["n"], row["seeds"]) == (3, "0 1 2")
    assert row["accuracy"] == statistics.fmean(accuracies)
    assert row["accuracy_std"] == statistics.stdev(accuracies)
    text = (made[1] / "table1.md").read_text()
    spread = f"{100 * statistics.fmean(accuracies):.2f} ± {100 * statistics.stdev(accuracies):.2f}"
    assert f"| SA quadratic | {spread} | 3 | 93.8 | 93.65 |" in text
    assert "not yet measured" not in text


def test_curves_are_the_runs_metrics(made, runs):
    rows = parquet.read_table(made[1] / "fig2.parquet").to_pylist()
    for (recipe, folder), group in groupby(rows, key=lambda row: (row["recipe"], row["folder"])):
        lines = (runs / folder / "metrics.jsonl").read_text().splitlines()
        expected = [(item["epoch"], item["test_accuracy"]) for item in map(json.loads, lines)]
        assert [(row["epoch"], row["test_accuracy"]) for row in group] == expected, recipe
    assert len({row["folder"] for row in rows}) == len(RECIPES) + 2


@pytest.mark.parametrize(
    ("target", "recipe", "chosen"),
    [
        ("fig3", "sa-quadratic", lambda row, _: row["layer"] == 1),
        ("fig4", "sa-quadratic", lambda row, last: row["step"] == last),
        ("fig12", "sa-quadratic-generalized", lambda row, last: row["step"] == last),
        ("fig13", "sa-quadratic-generalized-pruned", lambda row, last: row["step"] == last),
        ("fig14", "sa-quadratic-16-heads", lambda row, last: row["step"] == last),
    ],
)
def test_heads_are_the_runs_heads(made, runs, target, recipe, chosen):
    rows = parquet.read_table(runs / f"{recipe}-0" / "heads.parquet").to_pylist()
    last = max(row["step"] for row in rows)
    expected = [row for row in rows if chosen(row, last)]
    assert expected
    assert parquet.read_table(made[1] / f"{target}.parquet").to_pylist() == expected


def test_nearest_layer_is_named(made):
    (figure,) = (item for item in made[0].targets if item.target == "fig3")
    assert figure.notes == ("the network has 2 layers: layer 2 stands for the paper's 4",)
    assert "heads of layer 2 of 2 over training" in title(made[1], "fig3")


def title(folder, target):
    """Gives the title of a figure; matplotlib notes in SVG which text each group of outlines draws."""
    return (folder / f"{target}.svg").read_text()


def test_titles_say_recipe_scale_seed_and_number_of_seeds(made):
    assert "sa-quadratic, scale paper" in title(made[1], "fig4")
    assert "seed 0, one of n = 3" in title(made[1], "fig4")
    assert "seed 0, one of n = 1" in title(made[1], "fig14")


def test_learned_attention_is_the_networks(made, runs):
    network = load_network(runs / "sa-learned-0")
    rows = parquet.read_table(made[1] / "fig5.parquet").to_pylist()
    assert {(row["query_row"], row["query_col"]) for row in rows} == {(2, 2)}
    for layer, block in enumerate(network.blocks):
        expected = block.mixer.attention((4, 4))[:, 2, 2].detach().double().flatten().tolist()
        assert [row["attention"] for row in rows if row["layer"] == layer] == expected


def test_single_images_are_three_different_ones_and_named(made, runs):
    named = [item.notes[0] for item in made[0].targets if item.target in ON_ONE_IMAGE]
    assert len(set(named)) == 3
    digits, network = load_digits(), load_network(runs / "sa-learned-content-0")
    index = int(named[0].split()[2])
    assert f"(class {int(digits.test.labels[index])})" in named[0]
    shown = normalise(digits.test.images[index][None], digits.mean, digits.std)
    features = network.embed(network.patches(shown).movedim(1, -1)).movedim(-1, 1)
    expected = (
        network.blocks[0].mixer.attention(features)[0, :, 2, 2].detach().double().flatten().tolist()
    )
    rows = parquet.read_table(made[1] / "fig8.parquet").to_pylist()
    assert [row["attention"] for row in rows if row["layer"] == 0] == expected


def test_nothing_to_make_leaves_no_folder_and_says_the_runs_that_are_missing(tmp_path):
    runs = tmp_path / "my runs"
    runs.mkdir()
    result = reproduce(["fig5", "fig13"], runs, tmp_path / "out", scale="small", data=tmp_path)
    assert not (tmp_path / "out").exists()
    assert [(item.target, item.files, item.missing) for item in result.targets] == [
        ("fig5", (), ("sa-learned",)),
        ("fig13", (), ("sa-quadratic-generalized-pruned",)),
    ]
    names = ("sa-learned", "sa-quadratic-generalized", "sa-quadratic-generalized-pruned")
    assert result.missing == names
    assert "fig5: not made; missing sa-learned" in result.summary()
    assert f"missing runs: {', '.join(names)}; --train trains them" in result.summary()


def test_rows_without_runs_say_so(tmp_path):
    (tmp_path / "runs").mkdir()
    make_run(tmp_path / "runs" / "one", "sa-learned", scale="small")
    result = reproduce(["table1", "fig2"], tmp_path / "runs", tmp_path / "out", scale="small")
    assert not result.complete
    assert [item.missing for item in result.targets] == [
        tuple(name for name in RECIPES if name != "sa-learned")
    ] * 2
    text = (tmp_path / "out" / "table1.md").read_text()
    assert text.count("not yet measured") == len(RECIPES) - 1
    assert "its numbers are not beside these" in text
    assert "paper (%)" not in text
    assert len(result.missing) == len(RECIPES) - 1


def test_what_is_missing_is_trained_with_the_data_and_the_start_that_are_named(
    runs, tmp_path, monkeypatch
):
    """The generalised run is there: the pruned one starts from it. One that was stopped goes on."""
    folder = tmp_path / "runs"
    whole = copy_run(runs, "sa-quadratic-generalized-0", folder)
    stopped = copy_run(runs, "sa-learned-0", folder)
    (stopped / "record.json").unlink()
    begun = {}

    def train(recipe, *, output, resume, tell):
        begun[recipe.name] = (str(output), resume, recipe.data.folder, recipe.start.folder)

    monkeypatch.setattr("convattn.lab.reproduction.train", train)
    said = []
    result = reproduce(["fig5", "fig13"], folder, tmp_path / "out", data=tmp_path, tell=said.append)
    pruned, place = "sa-quadratic-generalized-pruned", str(tmp_path)
    assert begun == {
        "sa-learned": (f"{folder}/sa-learned-0", True, place, None),
        pruned: (f"{folder}/{pruned}-0", False, place, str(whole)),
    }
    assert said[:3] == [
        "sa-learned: could not be measured",
        f"{pruned}: could not be measured",
        "all 2 runs: 0 s",
    ]
    assert said[3:] == [f"training {output}" for output, *_ in begun.values()]
    assert result.unfinished == (f"{folder}/sa-learned-0",)


def test_a_run_that_cannot_be_trained_does_not_stop_the_others(tmp_path, monkeypatch):
    """An empty folder in the place of a run is filled."""
    folder, tried, said = tmp_path / "runs", [], []
    (folder / "sa-learned-0").mkdir(parents=True)

    def train(recipe, *, output, resume, tell):
        tried.append((recipe.name, resume))
        raise TrainingError("the loss is nan")

    monkeypatch.setattr("convattn.lab.reproduction.train", train)
    monkeypatch.setattr("convattn.lab.reproduction.announce", lambda *_, **__: None)
    result = reproduce(["fig4", "fig5"], folder, tmp_path / "out", tell=said.append)
    assert tried == [("sa-quadratic", False), ("sa-learned", False)]
    assert said[1::2] == [f"{folder}/{name}-0 FAILED: the loss is nan" for name, _ in tried]
    assert [target.complete for target in result.targets] == [False, False]


def test_damaged_runs_stop_only_what_needs_them(runs, tmp_path):
    copied = tmp_path / "runs"
    shutil.copytree(runs, copied)
    (copied / "sa-quadratic-0" / "heads.parquet").write_bytes(b"not parquet")
    (copied / "convnet-0" / "metrics.jsonl").unlink()
    (copied / "resnet18-0" / "record.json").write_text("{")
    (copied / "sa-learned-0" / "model.safetensors").write_bytes(b"")
    result = reproduce(["table1", "fig2", "fig3", "fig5", "fig12"], copied, tmp_path / "out")
    table, curves, ways, learned, before = result.targets
    assert "cannot read heads from" in str(ways.problem)
    assert str(learned.problem)
    assert (ways.files, learned.files) == ((), ())
    assert before.complete
    assert any("operations of" in note and "sa-learned-0" in note for note in table.notes)
    assert any(
        "left out: cannot read metrics" in note and "convnet-0" in note for note in curves.notes
    )
    assert not table.complete
    assert not curves.complete
    assert [item.partition(": ")[0] for item in result.unreadable] == [str(copied / "resnet18-0")]
    made_files = {file for item in result.targets for file in item.files} | {"reproduction.json"}
    assert {item.name for item in (tmp_path / "out").iterdir()} == made_files


def test_a_figure_that_fails_midway_leaves_nothing(runs, tmp_path, monkeypatch):
    def fail(*_):
        raise ArgumentError("the disc is full")

    monkeypatch.setattr("convattn.lab.paper_figures.write_parquet", fail)
    result = reproduce(["fig3"], runs, tmp_path / "out")
    assert result.targets[0].problem == "the disc is full"
    assert [item.name for item in (tmp_path / "out").iterdir()] == ["reproduction.json"]


def test_runs_left_out_are_named(runs, tmp_path):
    run = copy_run(runs, "sa-quadratic-0", tmp_path / "runs")
    again, other = (
        shutil.copytree(run, tmp_path / "runs" / name) for name in ("z-again", "z-other")
    )
    change_record(
        other,
        recipe={
            **json.loads((run / "record.json").read_text())["recipe"],
            "training": {"epochs": 9},
        },
    )
    result = reproduce(["table1", "fig4"], tmp_path / "runs", tmp_path / "out")
    assert f"left out, because another run has the same seed: {again}" in result.notes
    assert f"not in figures, because settings or data differ: {other}" in result.notes or (
        f"not in figures, because settings or data differ: {run}" in result.notes
    )
    rows = [
        row for row in rows_of(tmp_path / "out" / "table1.json") if row["recipe"] == "sa-quadratic"
    ]
    assert [row["n"] for row in rows] == [1, 1]


def test_images_that_cannot_be_had_are_said(runs, tmp_path):
    run = copy_run(runs, "sa-learned-content-0", tmp_path / "runs")
    (run / "recipe.toml").unlink()  # the record has the recipe
    record = json.loads((run / "record.json").read_text())
    record["recipe"]["data"] |= {"name": "cifar10", "folder": "no/such"}
    (run / "record.json").write_text(json.dumps(record))
    result = reproduce(["fig6"], tmp_path / "runs", tmp_path / "out")
    assert result.targets[0].problem == "CIFAR-10: there is no folder no/such"
    empty = tmp_path / "empty"
    empty.mkdir()
    result = reproduce(["fig6"], tmp_path / "runs", tmp_path / "second", data=empty)
    assert f"{empty} has no file train-00000-of-00001.parquet" in str(result.targets[0].problem)


def test_a_folder_is_not_for_runs_on_digits(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(paper_figures, "attention_grid", draw_nothing)
    run = copy_run(runs, "sa-learned-content-0", tmp_path / "runs")
    result = reproduce(["fig8"], tmp_path / "runs", tmp_path / "out", data=tmp_path)
    assert result.complete
    assert (
        f"{run} was trained on digits: its images are not of {tmp_path}" in result.targets[0].notes
    )


def test_images_of_another_copy_are_said(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(paper_figures, "attention_grid", draw_nothing)
    run = copy_run(runs, "sa-learned-content-0", tmp_path / "runs")
    data = json.loads((run / "record.json").read_text())["data"]
    change_record(run, data={**data, "name": "digits (another copy)", "hashes": {"train": "0"}})
    result = reproduce(["fig8"], tmp_path / "runs", tmp_path / "out")
    assert any(
        note.endswith("was trained on digits (another copy)") for note in result.targets[0].notes
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"targets": ["fig1"]},
            UnknownNameError,
            "unknown target 'fig1': did you mean 'fig1[0-9]'",
        ),
        ({"scale": "papr"}, UnknownNameError, "unknown scale 'papr': did you mean 'paper'"),
        ({"runs": "nowhere"}, ArgumentError, "runs must be a folder that exists, but is 'nowhere'"),
        ({"data": "nowhere"}, ArgumentError, "data must be a folder that exists, but is 'nowhere'"),
    ],
)
def test_mistakes_are_refused(runs, tmp_path, options, error, message):
    given = {"targets": ["fig3"], "runs": runs, **options}
    with pytest.raises(error, match=message):
        reproduce(given.pop("targets"), given.pop("runs"), tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_output_that_holds_something_is_refused(runs, tmp_path):
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(ArgumentError, match="output must be new or empty"):
        reproduce(["fig3"], runs, tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["kept"]
