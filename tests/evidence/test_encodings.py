"""The page of the encodings, from a study of tiny networks."""

import json

import pytest
import torch
from tests.lab.run_cases import few_digits

from convattn import analyze, load_network
from convattn.data import load_digits, normalise
from convattn.encodings import Quadratic
from convattn.lab import study, train
from convattn.lab.study_engines import Engine
from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet
from evidence.encodings.__main__ import drawn, main, seen_by_layer
from evidence.encodings.__main__ import page as encodings_page
from evidence.studies import read_study, spread

RECIPES = ["sa-learned", "sa-distance", "sa-quadratic", "convnet"]
TINY = {
    "model.width": "12",
    "model.depth": "1",
    "training.epochs": "1",
    "training.batch_size": "20",
}


class Here(Engine):
    """Trains in this process."""

    def run(self, runs):
        for run in runs:
            train(run.recipe, output=run.folder, data=few_digits(), progress=False)
            yield run


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table of three networks and two seeds, and the rates from which theirs was taken."""
    place = tmp_path_factory.mktemp("studies")
    settings = {"scale": "tiny", "engine": Here()}
    study(RECIPES, output=place, seeds=(0, 1), overrides=TINY, **settings)
    rates = {"1e-30": 0.1, "3e-3": 0.5}
    candidates = [
        {"values": {"optim.learning_rate": rate}, "accuracy": {"mean": mean}, "failed": []}
        for rate, mean in rates.items()
    ]
    choices = [
        {"label": label, "values": candidates[1]["values"], "candidates": candidates}
        for label in RECIPES
    ]
    record = json.loads((place / "study.json").read_text())
    search = {"command": "convattn study", "choices": choices}
    (place / "study.json").write_text(json.dumps(record | {"search": search}))
    return place


def write_page(runs, docs):
    """Measures the networks of a study and words the page; figures go into a folder."""
    places = ["--runs", runs, "--output", docs, "--record", docs / "encodings.json"]
    main([*map(str, places), "--images", "5"])
    return encodings_page(runs, json.loads((docs / "encodings.json").read_text()))


@pytest.fixture(scope="module")
def page(table, tmp_path_factory):
    out = tmp_path_factory.mktemp("docs")
    text = write_page(table, out)
    for figure in (
        "encodings.png",
        "encodings/fig3.png",
        "encodings/fig4.png",
        "encodings/fig5.png",
    ):
        assert (out / figure).read_bytes().startswith(b"\x89PNG")
    return text


def test_accuracies_are_those_of_the_runs_and_sorted(page, table):
    _, runs = read_study(table)
    found = {run.label: [] for run in runs}
    for run in runs:
        found[run.label].append(run.results["test_accuracy"])
    places = []
    for label, values in found.items():
        seeds = ", ".join(f"{value:.2%}" for value in values)
        places.append(
            (page.index(f"| `{label}` | 2 | **{spread(values)}** | {seeds} |"), -sum(values))
        )
    assert sorted(places) == sorted(places, key=lambda place: (place[1], place[0]))


def test_the_question_is_answered_seed_by_seed(page, table):
    runs = {
        (run.label, run.record["seed"]): run.results["test_accuracy"]
        for run in read_study(table)[1]
    }
    values = [100 * (runs["sa-learned", seed] - runs["sa-distance", seed]) for seed in (0, 1)]
    shown = ", ".join(f"{value:+.2f}" for value in values)
    mean = f"{sum(values) / 2:+.2f} points, n = 2: too few for an interval"
    assert f"| `sa-learned` | `sa-distance` | {mean} | {shown} |" in page
    assert "sa-distance-table-start" not in page  # not in this study
    assert "With content, or without?" not in page


def test_the_choice_is_that_of_the_search(page, table):
    choices = json.loads((table / "study.json").read_text())["search"]["choices"]
    assert len(choices) == len(RECIPES)
    for choice in choices:
        rate = choice["values"]["optim.learning_rate"]
        best = max(choice["candidates"], key=lambda item: item["accuracy"]["mean"])
        shown = f"{best['accuracy']['mean']:.2%}"
        assert f"| `{choice['label']}` | optim.learning_rate = {rate} | {shown} | chosen |" in page


def test_what_content_decides_is_measured_where_there_is_content(page, tmp_path):
    assert "What decides" not in page
    study(
        ["sa-learned-content"],
        output=tmp_path / "runs",
        seeds=(0,),
        scale="tiny",
        overrides=TINY,
        engine=Here(),
    )
    text = write_page(tmp_path / "runs", tmp_path / "docs")
    rows = [
        line for line in text.partition("## What decides")[2].splitlines() if line.startswith("| `")
    ]
    (run,), data = read_study(tmp_path / "runs")[1], load_digits()
    images, found = normalise(data.test.images[:5], data.mean, data.std), []
    for network in (drawn(run, data), load_network(run.folder)):
        (layer,) = analyze(network, images, controls=(), progress=False).layers
        found.append(
            [
                [getattr(head, name).value for head in layer.heads]
                for name in ("position_score", "content_share")
            ]
        )
    (start, before), (end, after) = found
    means = [sum(values) / len(values) for values in (start, end, before, after)]
    numbers = [f"{value:.2f}" for value in (*means[:2], max(end), *means[2:])]
    assert rows == [
        f"| `sa-learned-content` | 0 | 1 | {' | '.join(numbers)} | {layer.measured.convolution_score} |"
    ]


def test_centres_have_moved_from_where_they_were_drawn_to_where_they_are(page, table):
    data = load_digits()
    runs = [run for run in read_study(table)[1] if run.label == "sa-quadratic"]
    assert len(runs) == 2
    for run in runs:
        start, end = (
            next(encoding for encoding in network.modules() if isinstance(encoding, Quadratic))
            for network in (drawn(run, data), load_network(run.folder))
        )
        moved = (end.centres - start.centres).norm(dim=1)
        before, after = (1 / encoding.root_sharpness.abs() for encoding in (start, end))
        expected = f"| {moved.mean():.2f} | {moved.max():.2f} | {before.median():.2f} | {after.median():.2f} | "
        grown = f"{(after > before).sum()} of {len(after)} |"
        assert f"| `sa-quadratic` | {run.record['seed']} | 1 {expected}{grown}" in page


def test_pixels_seen_are_the_exponential_of_the_entropy():
    torch.manual_seed(0)
    network = AttentionNet("quadratic", width=12, depth=2, heads=3, ffn=5, patch=2).eval()
    found = seen_by_layer(network, torch.randn(4, 3, 8, 8))
    layers = [module for module in network.modules() if isinstance(module, RelativeAttention2d)]
    for layer, value in zip(layers, found, strict=True):
        weights = layer.attention((4, 4)).double().flatten(3).flatten(1, 2)
        entropy = torch.special.entr(weights).sum(-1).mean(1)
        assert value == pytest.approx(entropy.exp().mean().item(), rel=1e-5)


def test_what_is_no_study_of_test_images_is_refused(tmp_path, capsys):
    overrides = {**TINY, "data.held_out": "20"}
    search = tmp_path / "search"
    study(["convnet"], output=search, seeds=(0,), overrides=overrides, scale="tiny", engine=Here())
    for folder, words in ((search, "finished runs on test images"), (tmp_path, "study.json")):
        with pytest.raises(SystemExit):
            main(["--runs", str(folder), "--output", str(tmp_path / "docs")])
        assert words in capsys.readouterr().err
        assert not (tmp_path / "docs").exists()
