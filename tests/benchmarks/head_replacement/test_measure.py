"""The curve of thresholds of one network, and the page that words it."""

import copy
import json
import statistics

import pytest
import timm
import torch

from benchmarks.head_replacement.measure import Subject, effect, measure
from benchmarks.head_replacement.page import draw, lost, page, verdict
from convattn.heads.replace import replace_convolutional_heads

SIZES = {
    "img_size": 8,
    "patch_size": 2,
    "num_classes": 5,
    "embed_dim": 12,
    "depth": 2,
    "num_heads": 3,
}
CONTENT = {
    "command": "python -m benchmarks.head_replacement vit --work work --output out",
    "hardware": {"processor": "one", "threads": "1"},
    "versions": {"torch": "2", "timm": "1"},
    "revision": "abc",
    "busy": True,
    "data": {"name": "noise"},
}


@pytest.fixture(scope="module")
def both():
    """What is found, and the effects of refitted networks: with each, how many heads were replaced."""
    torch.manual_seed(0)
    network = timm.models.VisionTransformer(**SIZES).eval()
    subject = Subject(
        "vit", network, torch.randn(6, 3, 8, 8), torch.randn(20, 3, 8, 8), torch.randint(5, (20,))
    )
    networks, effects = [], []

    def replace(*arguments, **options):
        made, record = replace_convolutional_heads(*arguments, **options)
        if options.get("refit") is subject.measured:
            networks.append((made, len(record.replaced)))
        return made, record

    def measured(made, *arguments):
        result = effect(made, *arguments)
        effects.extend((result, count) for one, count in networks if one is made)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.head_replacement.measure.replace_convolutional_heads", replace)
        patch.setattr("benchmarks.head_replacement.measure.effect", measured)
        return measure(subject, thresholds=(1.0, 0.5, 1e-9), controls=2), effects


@pytest.fixture
def found(both):
    return both[0]


def with_curve(network, **changes):
    """The network as if a row of its curve had been found otherwise."""
    made = copy.deepcopy(network)
    made["curve"][-1].update(changes)
    return made


def test_a_curve_has_a_row_for_each_threshold_from_the_highest(found):
    assert [row["threshold"] for row in found["curve"]] == [1.0, 0.5, 1e-9]
    assert len(found["heads"]) == 6
    assert found["curve"][0]["replaced"] == found["curve"][0]["changed"] == 0
    assert found["curve"][0]["controls"] == []
    assert found["curve"][0]["accuracy"] == found["accuracy"]
    counts = [row["replaced"] for row in found["curve"]]
    assert counts == sorted(counts)


def test_rows_with_heads_are_measured_with_refitted_outputs_too(both):
    found, effects = both
    rows = [row for row in found["curve"] if row["replaced"]]
    assert rows
    assert all(row["refitted"] is None for row in found["curve"] if not row["replaced"])
    for row in rows:
        assert len(row["controls"]) == 2
        for item in (row, *row["controls"]):
            assert [count for result, count in effects if result is item["refitted"]] == [
                row["replaced"]
            ]


def test_the_error_is_that_of_the_paired_difference():
    torch.manual_seed(0)
    labels, before, after = torch.randint(3, (3, 40)).unbind()
    scores = torch.nn.functional.one_hot(after, 3).float()[:, :, None, None]
    subject = Subject("made up", torch.nn.Flatten(), scores, scores, labels)
    found = effect(subject.model, subject, before)
    drops = [
        float(b == label) - float(a == label)
        for a, b, label in zip(after, before, labels, strict=True)
    ]
    assert found["accuracy"] == pytest.approx(sum(map(float, after == labels)) / 40)
    assert found["error"] == pytest.approx(statistics.stdev(drops) / 40**0.5)
    assert found["changed"] == int((after != before).sum())


def test_what_is_measured_is_written_as_json(found):
    assert json.loads(json.dumps(found)) == found


def test_the_page_says_if_no_head_is_a_convolution(found):
    text = page({**CONTENT, "networks": [with_curve(found, threshold=0.9, replaced=0)]})
    assert "No head has R² ≥ 0.9 (networks: 1; largest R²: " in text
    assert "No threshold is met by any head." in text


def test_the_page_says_what_networks_lose(found):
    before = found["accuracy"]
    again = {"accuracy": before - 0.01, "error": 0.002, "changed": 2}
    worse = [
        {
            "seed": 0,
            "accuracy": before - 0.2,
            "changed": 5,
            "refitted": {"accuracy": before - 0.1, "changed": 4},
        }
    ]
    good = with_curve(
        found,
        threshold=0.9,
        replaced=2,
        accuracy=before - 0.0005,
        error=0.001,
        refitted=again,
        controls=[],
    )
    bad = with_curve(
        found,
        threshold=0.9,
        replaced=4,
        accuracy=before - 0.03,
        error=0.004,
        refitted=again,
        controls=worse,
    )
    assert lost(bad, bad["curve"][-1]) == pytest.approx(3)
    said = verdict([good, bad]).replace("\n", " ")
    names = f"`{found['network']}`, `{found['network']}`"
    assert f"6 of 12 heads have R² ≥ 0.9, in 2 of 2 networks ({names})." in said
    assert (
        "those of a network cost 0.05 ± 0.10, 3.00 ± 0.40 points of accuracy (the aim is at most 0.1),"
        in said
    )
    assert "with refitted output matrices 1.00 ± 0.20, 1.00 ± 0.20." in said
    assert "As many random heads cost 20.00 points on average" in said
    row = next(
        line
        for line in page({**CONTENT, "networks": [bad]}).splitlines()
        if line.startswith("| 0.9 | 4 |")
    )
    assert "| 0 of 2 | +3.00 ± 0.40 |" in row
    assert "| +1.00 ± 0.20 | +20.00 (at most +20.00) | +10.00 (at most +10.00) |" in row


def test_the_figure_is_drawn(found, tmp_path):
    draw([tmp_path / "lost.png"], [with_curve(found, threshold=0.9, replaced=2)])
    assert (tmp_path / "lost.png").stat().st_size > 1000
