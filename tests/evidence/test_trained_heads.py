import json

import pytest
import torch

from convattn.heads.head_report import HeadReport
from convattn.models import AttentionNet
from evidence.trained_heads.__main__ import Subject, report_of
from evidence.trained_heads.page import distance, page, summary, verdict


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    torch.manual_seed(0)
    network = AttentionNet("quadratic", width=18, depth=2, heads=3, ffn=5).eval()
    kept = tmp_path_factory.mktemp("work") / "small.json"
    return report_of(Subject("small", network, torch.randn(5, 3, 16, 16), 3, {}), kept), kept


def content(networks):
    return {
        "command": "python -m evidence.trained_heads small",
        "images": 5,
        "data": {"name": "cifar10"},
        "hardware": {"processor": "a processor", "threads": 1},
        "versions": {"torch": "2.0"},
        "revision": "1234567",
        "networks": networks,
    }


def test_a_report_is_kept_and_read_again(measured):
    report, kept = measured
    assert report.to_json() == HeadReport.load(kept).to_json()
    broken = Subject(
        "small", torch.nn.Identity(), torch.randn(1), 3, {}
    )  # cannot be measured, and is not
    assert report_of(broken, kept).to_json() == report.to_json()


def test_numbers_are_those_of_the_report(measured):
    report, _ = measured
    told = json.loads(json.dumps({"network": "small", **summary(report)}))
    assert told["taps"] == 9
    for layer, of in zip(told["layers"], report.layers, strict=True):
        assert layer["hard"] == sum(head.hard_share.value > 0.5 for head in of.heads)
        assert layer["convolutional"] == 3  # heads without content
        assert set(layer["controls"]) == {"shuffled images", "untrained weights"}
    heads = [head.distance.value for layer in report.layers for head in layer.heads]
    assert distance(told) == pytest.approx(sum(heads) / len(heads), rel=1e-12)


def test_the_page_has_a_section_for_each_network_and_pairs_seeds(measured):
    report, _ = measured
    one = {"kind": "AttentionNet", "accuracy": 0.5, **summary(report)}
    page_of_one = page(content([{"network": "small", **one}]))
    assert "## small" in page_of_one
    assert "CutMix" not in page_of_one
    pairs = [
        {"network": f"{n}", **one, "kind": "vit", "seed": n // 2, "cutmix": bool(n % 2)}
        for n in range(4)
    ]
    pairs[1] = {
        **pairs[1],
        "layers": [{**layer, "distance": layer["distance"] - 1} for layer in one["layers"]],
    }
    text = page(content(pairs))
    assert "| 0 | 50.00% | 50.00% |" in text
    assert "| -1.000 |" in text
    other = {**pairs[0], "network": "other", "kind": "convit", "accuracy": 0.25}
    compared = page(content([*pairs, other])).partition("## With and without CutMix")[2]
    assert "25.00%" not in compared.partition("\n## ")[0]


@pytest.mark.parametrize(
    ("gaps", "words"),
    [
        ([-0.1, -0.3], "-0.200 on average (n = 2: too few for an interval)."),
        (
            [0.1, 0.2, 0.3],
            "No difference is resolved: +0.200 on average (n = 3; 95 % t interval -0.048 to +0.448).",
        ),
        (
            [0.1, 0.11, 0.12],
            "The difference is resolved: +0.110 on average (n = 3; 95 % t interval +0.085 to +0.135).",
        ),
    ],
)
def test_the_verdict_names_the_interval(gaps, words):
    assert words in verdict(gaps)
