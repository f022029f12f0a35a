"""The tables of the encodings, from a study of tiny networks."""

import json
from statistics import mean, stdev
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tests.lab.run_cases import few_digits

from convattn import analyze, load_network
from convattn.data import normalise
from convattn.encodings import Quadratic
from convattn.lab import study as train_study
from convattn.lab import train
from convattn.layers import RelativeAttention2d
from evidence.encodings import __main__ as encodings
from evidence.encodings.__main__ import accuracies, deciding, drawn, measure, moved
from evidence.encodings.taps import __main__ as taps
from evidence.speedrun.centres import PEAKS, tables_in_words
from evidence.studies import read_run, spread, study
from evidence.values import difference_table, family

RECIPES = ["sa-learned", "sa-distance", "sa-quadratic", "convnet"]
TINY = {
    "model.width": "12",
    "model.depth": "1",
    "training.epochs": "1",
    "training.batch_size": "20",
}
IMAGES = 5


def train_here(runs, **_):
    for run in runs:
        train(run.recipe, output=run.folder, data=few_digits(), progress=False)
        yield run


def trained(place, recipes, seeds):
    with patch("convattn.lab.studies.carry_out", train_here):
        train_study(recipes, output=place, seeds=seeds, scale="tiny", overrides=TINY)
    return study(place)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def runs(place):
    """A study of four networks and two seeds."""
    return trained(place, RECIPES, (0, 1))


@pytest.fixture(scope="module")
def measured(runs):
    return measure(runs, few_digits(), IMAGES)


def test_the_script_writes_record_and_figures(runs, place, tmp_path, monkeypatch):
    monkeypatch.setattr(encodings, "PAGES", tmp_path)
    monkeypatch.setattr(encodings, "__file__", str(tmp_path / "__main__.py"))
    monkeypatch.setattr("sys.argv", ["encodings", "--runs", str(place), "--images", f"{IMAGES}"])
    encodings.main()
    for figure in ("fig3", "fig4", "fig5"):
        assert (tmp_path / f"encodings/{figure}.png").read_bytes().startswith(b"\x89PNG")
    (record,) = tmp_path.glob("*.json")
    assert json.loads(record.read_text())["figures"] == ["fig5", "fig4", "fig3"]


def test_accuracies_are_those_of_the_runs_and_sorted(runs):
    table = accuracies(runs)
    places = []
    for label in RECIPES:
        values = [run.results["test_accuracy"] for run in runs.of(label)]
        seeds = ", ".join(f"{value:.2%}" for value in values)
        place = table.index(f"| `{label}` | 2 | **{spread(values)}** | {seeds} |")
        places.append((place, -sum(values)))
    assert sorted(places) == sorted(places, key=lambda place: (place[1], place[0]))


def test_differences_of_a_family_are_adjusted_by_holms_rule():
    """For three values the two-sided p of t is 1 − |t| / √(2 + t²)."""
    differences = {
        ("far", "base"): [-1.0, -1.01, -1.02],
        ("near", "base"): [1.0, 1.2, 1.5],
        ("same", "base"): [-0.1, 0.2, 0.1],
    }
    tests = []
    for values in differences.values():
        statistic = mean(values) / (stdev(values) / 3**0.5)
        tests.append(1 - abs(statistic) / (2 + statistic**2) ** 0.5)
    assert tests == sorted(tests)
    gap = family(differences)
    expected = [3 * tests[0], 2 * tests[1], tests[2]]
    assert [gap(*pair).p for pair in differences] == pytest.approx(expected, rel=1e-6)
    assert [gap(*pair).word for pair in differences] == ["behind", "ahead", "not resolved"]
    assert gap("base", "near").word == "behind"
    row = (
        "| `base` | `far` | +1.01 points (0.99 to 1.03; p = 9.8e-05: ahead) | +1.00, +1.01, +1.02 |"
    )
    assert row in difference_table(gap, [("base", "far")], "network")


def test_what_content_decides_is_measured_where_there_is_content(measured, tmp_path):
    data = few_digits()
    images = normalise(data.test.images[:IMAGES], data.mean, data.std)
    assert measured["deciding"] == []
    content = trained(tmp_path / "runs", ["sa-learned-content"], (0,))
    rows = deciding(measure(content, data, IMAGES)).splitlines()[2:]
    found = []
    for network in (drawn(content.all[0], data), load_network(content.all[0].folder)):
        (layer,) = analyze(network, images, controls=(), progress=False).layers
        found.append([head.position_score.value for head in layer.heads])
        found.append([head.content_share.value for head in layer.heads])
    start, before, end, after = found
    means = [sum(values) / len(values) for values in (start, end, before, after)]
    numbers = [f"{value:.2f}" for value in (*means[:2], max(end), *means[2:])]
    score = layer.measured.convolution_score
    assert rows == [f"| `sa-learned-content` | 0 | 1 | {' | '.join(numbers)} | {score} |"]


def test_centres_have_moved_from_where_they_were_drawn_to_where_they_are(runs):
    data, table = few_digits(), moved(runs)
    for run in runs.of("sa-quadratic"):
        start, end = (
            next(encoding for encoding in network.modules() if isinstance(encoding, Quadratic))
            for network in (drawn(run, data), load_network(run.folder))
        )
        far = (end.centres - start.centres).norm(dim=1)
        before, after = (1 / encoding.root_sharpness.abs() for encoding in (start, end))
        expected = f"| {far.mean():.2f} | {far.max():.2f} | {before.median():.2f} | {after.median():.2f} | "
        grown = f"{(after > before).sum()} of {len(after)} |"
        assert f"| `sa-quadratic` | {run.seed} | 1 {expected}{grown}" in table


def test_pixels_seen_are_the_exponential_of_the_entropy(runs, measured):
    seen = measured["seen"]
    assert "convnet" not in seen
    for run in runs.of("sa-quadratic"):
        (layer,) = (
            module
            for module in load_network(run.folder).modules()
            if isinstance(module, RelativeAttention2d)
        )
        weights = layer.attention((4, 4)).double().flatten(3).flatten(1, 2)
        entropy = torch.special.entr(weights).sum(-1).mean(1)
        (value,) = seen["sa-quadratic"]["end"][run.seed]
        assert value == pytest.approx(entropy.exp().mean().item(), rel=1e-5)


def test_finished_runs_of_the_plan_come_with_the_peaks_of_their_tables(
    runs, place, tmp_path, monkeypatch
):
    monkeypatch.setattr(taps, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["taps", str(place)])
    taps.main()
    for run in runs.of("sa-learned"):
        kept = tmp_path / run.folder.name
        assert read_run(kept).record == run.record
        encoding = load_network(run.folder).blocks[0].mixer.encoding
        near = torch.cartesian_prod(torch.arange(-3.0, 4), torch.arange(-3.0, 4))
        highest = near[encoding(near).argmax(1)].int()  # of the sums over both axes
        assert json.loads((kept / PEAKS).read_text()) == [highest.tolist()]
        assert not [*kept.glob("*.safetensors")]


@pytest.mark.parametrize(
    ("peaks", "words"),
    [
        ([(row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)], "learned tables form"),
        ([(3, 3)] * 9, "is not shown"),
    ],
)
def test_the_rule_of_the_plan_is_for_all_its_runs(peaks, words):
    run = [np.array(peaks, dtype=float)]
    assert words in tables_in_words([run] * 5)
    assert tables_in_words([run]) == "1 of 5 has finished, and the rule is for all of them"
