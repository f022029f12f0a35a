"""The sweep over networks of other libraries: what it writes down, and how it goes on."""

import json
import sys
from functools import partial

import pytest
import torch
from torch import nn

from convattn import network_to_attention
from evidence.sweep import __main__ as sweep
from evidence.sweep import convert
from evidence.sweep.__main__ import in_its_own_process
from evidence.sweep.control import turn_one_weight
from evidence.sweep.page import controls, counts, families, read, sections
from evidence.sweep.randomise import randomise
from evidence.sweep.subjects import Built, Home, Subject, WithoutConvolutionError
from evidence.sweep.training import train_beside


class ByInput(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight * x.mean(), self.bias)


def build(network):
    return Built(network(), (torch.randn(1, 3, 9, 11),))


def small():
    layers = [
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 1),
        nn.Flatten(),
        nn.Linear(252, 5),
    ]
    return nn.Sequential(*layers)


FAMILIES = {"small": small, "by input": lambda: nn.Sequential(ByInput(3, 3, 1), small())}


def subject(family):
    if family == "linear":
        raise WithoutConvolutionError("none of its 3 architectures holds one")
    return Subject(f"{family}-1", partial(build, FAMILIES[family]), "made for this test")


HOME = Home(
    "here",
    ("torch",),
    lambda: ("small", "by input", "linear"),
    subject,
    ways=("auto", "separable", "back", "step"),
)


def in_this_process(home, family, seconds, *code):
    assert seconds > 0
    return convert.convert_family(home, family, *code)


def as_planned(network, *, impl, images):
    assert impl in ("auto", "separable")
    return network_to_attention(network, images=images)


@pytest.fixture
def here(monkeypatch):
    for module in (convert, sweep):
        monkeypatch.setattr(module, "home", {"here": HOME}.get)
    monkeypatch.setattr(sweep, "HOMES", {"here": "not imported"})
    monkeypatch.setattr(sweep, "in_its_own_process", in_this_process)


@pytest.fixture
def record(here, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["sweep", "--homes", "here"])
    monkeypatch.setattr(sweep, "RECORD", tmp_path / "record.jsonl")
    return tmp_path / "record.jsonl"


def test_a_line_says_what_both_paths_gave(here):
    line = convert.convert_family("here", "small")
    assert (line["outcome"], line["model"], line["remark"]) == (
        "passed",
        "small-1",
        "made for this test",
    )
    assert line["parameters"] == sum(parameter.numel() for parameter in small().parameters())
    ways = {"auto": {"shift": 2}, "separable": {"separable": 2}, "back": {"convolution": 2}}
    for way, used in ways.items():
        path = line["paths"][way]
        assert (path["outcome"], path["layers"], path["heads"], path["used"]) == (
            "passed",
            2,
            10,
            used,
        )
        assert path["reference"] == "float64"
        assert path["measured_error"] <= path["rounding"] < path["largest"]
        assert path["shapes"] == [[1, 3, 9, 11]]
    assert line["paths"]["auto"]["control"]["rejected"]
    assert line["paths"]["back"]["same_weights"]
    step = line["paths"]["step"]
    assert (step["outcome"], step["compared"], step["not_compared"]) == ("passed", 8, 0)
    assert step["difference"] <= step["rounding"] < step["moved"]
    assert step["missed_step"]["rejected"]
    assert json.loads(json.dumps(line)) == line


def test_refused_networks_and_those_without_convolution_have_a_line_too(here):
    refused = convert.convert_family("here", "by input")
    assert refused["outcome"] == "refused"
    assert "depend on the input" in refused["paths"]["separable"]["reason"]
    assert convert.convert_family("here", "linear") == {
        "home": "here",
        "family": "linear",
        "outcome": "no convolution",
        "reason": "none of its 3 architectures holds one",
    }


def test_a_layer_on_another_path_than_requested_fails(here, monkeypatch):
    monkeypatch.setattr(convert, "network_to_attention", as_planned)
    paths = convert.convert_family("here", "small")["paths"]
    assert (paths["auto"]["outcome"], paths["separable"]["outcome"]) == ("passed", "failed")


def test_a_stopped_sweep_goes_on(record):
    kept = {"home": "here", "family": "small", "outcome": "passed", "model": "kept"}
    sweep.append(kept, record)
    sweep.main()
    lines = read(record)
    names = [line.get("family", "start") for line in lines]
    assert names == ["small", "start", "by input", "linear"]
    assert lines[0]["model"] == "kept"
    assert torch.__version__.startswith(lines[1]["versions"]["torch"])
    sweep.main()
    assert read(record) == lines


def test_tables_count_and_list(record):
    sweep.main()
    networks = families(read(record))
    assert "| here | 3 | 1 | 0 | 1 | 0 | 0 | 0 | 1 | 50.0% |" in counts(networks)
    assert [control["rejected"] for control in controls(networks)] == [True]
    (refused,) = sections(networks)["Not passed"]
    assert refused.startswith("here by input, by input-1: refused. cannot convert 1 module of ")


CONV = {"in_channels": 3, "out_channels": 5, "kernel_size": 3}

LISTED = """
from torch import nn

class Small(nn.Module):
    def __init__(self, norm, width):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
        self.norm = norm(width)

    def forward(self, x, *, times):
        return self.norm(self.conv(x)) * times
"""


def test_networks_of_other_peoples_code_are_listed_in_a_file(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(sweep, "in_its_own_process", in_this_process)
    (tmp_path / "code" / "first").mkdir(parents=True)
    (tmp_path / "code" / "first" / "small_of_first.py").write_text(LISTED)
    small = {"norm": {"network": "torch.nn:BatchNorm2d"}, "width": 5}
    rows = {
        "small": {
            "network": "small_of_first:Small",
            "folder": "first",
            "options": small,
            "arguments": {"x": [2, 3, 7, 11], "times": 3},
        },
        "normalised": {
            "network": "torch.nn.utils.parametrizations:weight_norm",
            "options": {"module": {"network": "torch.nn:Conv1d", "options": CONV}},
            "arguments": [[2, 3, 13]],
        },
    }
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    words = ["sweep", "--list", "mine.json", "--code", "code", "--record", "out.jsonl"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", words)
    sweep.main()
    start, *lines = read(tmp_path / "out.jsonl")
    assert "torch" in start["versions"]
    found = [(line["home"], line["family"], line["outcome"]) for line in lines]
    assert found == [("mine", "small", "passed"), ("mine", "normalised", "passed")]
    assert [line["paths"]["step"]["compared"] for line in lines] == [4, 3]


def test_a_training_that_differs_is_told():
    built = build(small)
    randomise(built)
    attention, _ = network_to_attention(built.network, images=built.arguments)
    attention.get_parameter("5.bias").requires_grad_(False)
    step = train_beside(built, attention)
    assert (step["outcome"], step["name"]) == ("failed", "5.bias")
    refused = train_beside(built._replace(arguments=(torch.randn(1, 2, 9, 11),)), attention)
    assert refused["outcome"] == "not trained"


@pytest.mark.slow
def test_a_network_that_fails_or_takes_too_long_costs_no_other():
    late = in_its_own_process("timm", "resnet", 0.0)
    assert (late["outcome"], late["reason"]) == ("too slow", "over 0 seconds")
    crashed = in_its_own_process("timm", "no such module", 400.0)
    assert (crashed["outcome"], crashed["reason"]) == ("crashed", "KeyError: 'no such module'")


def test_randomising_leaves_nothing_that_is_constant_and_keeps_the_signal():
    torch.manual_seed(0)
    network = nn.Sequential(
        *(
            layer
            for _ in range(20)
            for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        )
    )
    network.register_parameter("scale", nn.Parameter(torch.full((8,), 1e-6)))
    nn.init.zeros_(network[-2].weight)
    nn.init.zeros_(network[3].weight)
    x = torch.randn(1, 8, 9, 11)
    randomise(Built(network, (x,)))
    assert not network.training
    for name, tensor in network.state_dict().items():
        assert name.endswith("num_batches_tracked") or tensor.unique().numel() > 1, name
    assert 0.1 <= network.scale.min() <= network.scale.max() <= 0.3
    assert 0.1 < network(x).std() < 10
    assert (network(x) - network(-x)).abs().max() > 0.1


def test_a_weight_turned_about_is_told():
    torch.manual_seed(0)
    built = build(small)
    randomise(built)
    made, certificate = network_to_attention(built.network, images=built.arguments)
    control = turn_one_weight(built, made, certificate)
    assert control["layer"] == "0"
    assert control["rejected"]
    assert control["share_of_budget"] > 100
