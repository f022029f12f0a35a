"""The curve of thresholds of one network, and the page that words it."""

import copy
import json
import statistics

import pytest
import timm
import torch

from evidence.head_replacement.measure import Subject, effect, measure
from evidence.head_replacement.page import draw, lost, page, verdict

SIZES = {
    "img_size": 8,
    "patch_size": 2,
    "num_classes": 5,
    "embed_dim": 12,
    "depth": 2,
    "num_heads": 3,
}
CONTENT = {
    "command": "python -m evidence.head_replacement vit --work work --output out",
    "hardware": {"processor": "one", "threads": "1"},
    "versions": {"torch": "2", "timm": "1"},
    "revision": "abc",
    "busy": True,
    "data": {"name": "noise"},
}


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    network = timm.models.VisionTransformer(**SIZES).eval()
    subject = Subject(
        "vit", network, torch.randn(24, 3, 8, 8), torch.randn(20, 3, 8, 8), torch.randint(5, (20,))
    )
    return measure(subject, thresholds=(1.0, 0.5, 1e-9), controls=2)


def with_curve(network, **changes):
    """The network as if a row of its curve had been found otherwise."""
    made = copy.deepcopy(network)
    made["curve"][-1].update(changes)
    return made


def test_a_curve_has_a_row_for_each_threshold_from_the_highest(found):
    rows = found["curve"]
    assert [row["threshold"] for row in rows] == [1.0, 0.5, 1e-9]
    assert len(found["heads"]) == 6
    assert rows[0]["replaced"] == rows[0]["changed"] == 0
    assert rows[0]["accuracy"] == found["accuracy"]
    counts = [row["replaced"] for row in rows]
    assert counts == sorted(counts)
    assert counts[-1] > 0
    for row in rows:
        assert len(row["controls"]) == (2 if row["replaced"] else 0)
        assert min(row["milliseconds_before"], row["milliseconds_after"]) > 0
    assert json.loads(json.dumps(found)) == found


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


def test_the_page_says_if_no_head_is_a_convolution(found):
    text = page({**CONTENT, "networks": [with_curve(found, threshold=0.9, replaced=0)]})
    assert "No head has R² ≥ 0.9 (networks: 1; largest R²: " in text
    assert "No threshold is met by any head." in text


def test_the_page_says_what_networks_lose(found):
    before = found["accuracy"]
    worse = [{"seed": 0, "accuracy": before - 0.2, "changed": 5}]
    good = with_curve(
        found,
        threshold=0.9,
        replaced=2,
        accuracy=before - 0.0005,
        error=0.001,
        controls=[],
    )
    bad = with_curve(
        found,
        threshold=0.9,
        replaced=4,
        accuracy=before - 0.03,
        error=0.004,
        controls=worse,
    )
    assert lost(bad, bad["curve"][-1]) == pytest.approx(3)
    said = verdict([good, bad]).replace("\n", " ")
    names = f"`{found['network']}`, `{found['network']}`"
    assert f"6 of 12 heads have R² ≥ 0.9, in 2 of 2 networks ({names})." in said
    assert (
        "those of a network cost 0.05 ± 0.10, 3.00 ± 0.40 points of accuracy (the aim is at most 0.1)."
        in said
    )
    assert "As many random heads cost 20.00 points on average" in said
    row = next(
        line
        for line in page({**CONTENT, "networks": [bad]}).splitlines()
        if line.startswith("| 0.9 | 4 |")
    )
    assert "| 0 of 2 | +3.00 ± 0.40 |" in row
    assert "| +20.00 (at most +20.00) |" in row


def test_the_figure_is_drawn(found, tmp_path):
    draw([tmp_path / "lost.png"], [with_curve(found, threshold=0.9, replaced=2)])
    assert (tmp_path / "lost.png").stat().st_size > 1000
