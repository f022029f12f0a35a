"""The numbers of the guided tour against the library's: certificates, encodings, benchmark records."""

import html
import json
import re
import runpy
from pathlib import Path

import pytest
import torch
from tests.viewer.node import run_node
from torch import nn

import convattn
from convattn.convert import conv_to_attention
from convattn.encodings import AxisAdditiveEncoding, off_centre_mass

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "tour_costs.py"))
SHARPNESS = (0.1, 0.5, 1.0, 3.0, 3.5, 5.0, 10.0, 20.0, 50.0, 103.0, 104.5)


@pytest.fixture(scope="module")
def tour():
    return json.loads(
        run_node("tour.js", json.dumps([held_sharpness(alpha) for alpha in SHARPNESS]))
    )


def test_the_tour_has_at_most_550_words_and_its_appendix_500():
    text = (Path(convattn.__file__).parent / "viewer/static/tour.html").read_text(encoding="utf-8")
    steps, appendix = text.split('<template data-tour="encodings"')
    assert "Attention" in steps.partition('data-tour="sharpness"')[0]
    for part, most in ((steps, 550), (appendix, 500)):
        assert most / 2 < len(html.unescape(re.sub(r"<[^>]+>", " ", part)).split()) <= most


def held_sharpness(alpha):
    """The sharpness that a layer has if this one is wanted: it holds the root in float32."""
    layer, _ = conv_to_attention(nn.Conv2d(1, 1, 1), sharpness=alpha)
    return layer.encoding.sharpness.double().item()


def test_bounds_are_those_of_the_certificate(tour):
    for shown in tour["bounds"]:
        conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)
        with torch.no_grad():
            conv.weight.copy_(torch.tensor(shown["kernel"]).view(1, 1, 3, 3))
        for sharpness, bound in zip(SHARPNESS, shown["bounds"], strict=True):
            layer, certificate = conv_to_attention(conv, sharpness=sharpness)
            assert certificate.verdict == (
                "exact" if bound <= certificate.rounding else "different"
            )
            assert bound == pytest.approx(certificate.bound_per_unit, rel=1e-12)
            assert layer.encoding.centres.tolist() == shown["offsets"]
    leaks = [off_centre_mass(held_sharpness(alpha), dims=2) for alpha in SHARPNESS]
    assert tour["leaks"] == pytest.approx(leaks, rel=1e-12)


def test_encodings_have_the_parameters_of_the_librarys(tour):
    heads, dims, size = 9, 2, 16
    for (waves, width), shown in zip(((1, 400), (8, 24)), tour["encodings"], strict=True):
        ours = {
            "Quadratic": convattn.Quadratic(heads, dims),
            "Generalised quadratic": convattn.GeneralizedQuadratic(heads, dims),
            "Learned table": convattn.LearnedTable(heads, dims, extent=size),
            "Learned, one table per axis": convattn.LearnedAxial(
                heads, dims, extent=size, width=width
            ),
            "Sinusoidal": convattn.Sinusoidal(heads, dims, frequencies=waves),
            "Function of distance": convattn.Distance(heads, dims),
            "Linear distance": convattn.LinearDistance(heads, dims),
        }
        assert [one["name"] for one in shown] == list(ours)
        for one, encoding in zip(shown, ours.values(), strict=True):
            assert one["parameters"] == sum(
                parameter.numel() for parameter in encoding.parameters()
            ), one
            assert one["additive"] == isinstance(encoding, AxisAdditiveEncoding), one


def test_waves_are_the_librarys(tour):
    encoding = convattn.Sinusoidal(1, 1, frequencies=3)
    features = encoding.feature_vectors(torch.arange(-7.0, 8.0, dtype=torch.float64)[:, None])
    shown = torch.tensor(tour["waves"], dtype=torch.float64)
    rounded_otherwise = shown.abs().max().item() * 16 * torch.finfo(torch.float64).eps
    assert (
        torch.cat([shown[::2], shown[1::2]]).T - features
    ).abs().max().item() <= rounded_otherwise


def test_costs_are_those_of_the_records():
    shown = json.loads(SCRIPT["WRITTEN"].read_text(encoding="utf-8"))
    assert shown == SCRIPT["costs"](), "run scripts/tour_costs.py"
    lines = {line["name"]: dict(line["points"]) for line in shown["charts"][0]["lines"]}
    layers = json.loads((SCRIPT["RESULTS"] / "layers.json").read_text(encoding="utf-8"))
    case = next(case for case in layers["cases"] if case["name"] == "quadratic-32-forward")
    times = {one["contender"]: sorted(one["seconds"]) for one in case["measurements"]}
    assert lines["all pairs"][1024] == pytest.approx(
        times["published"][1] / case["images"] * 1000, rel=5e-3
    )
    assert lines["convolution 3 × 3"][1024] == pytest.approx(
        times["conv"][1] / case["images"] * 1000, rel=5e-3
    )
