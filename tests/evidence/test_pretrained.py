import pytest
import torch

from convattn.data import load_digits
from convattn.lab.speed_net import SpeedNet
from convattn.models import AttentionNet, ConvNet
from evidence.pretrained.__main__ import KERNELS, conversions, convertible, page
from evidence.trained_networks.measure import BATCH, Bench


@pytest.fixture(scope="module")
def rows():
    torch.manual_seed(0)
    network = SpeedNet(widths=(3, 5), in_channels=1, mixing="attention", sharpness=1.0).eval()
    return list(conversions(Bench(load_digits(), 1), "small", network))


def test_every_window_there_and_back(rows):
    assert len(rows) == len(KERNELS) + 2
    assert {row["verdict"] for row in rows if not row["exact"]} == {"different"}
    assert {row["verdict"] for row in rows if row["exact"]} == {"exact"}
    assert rows[1]["exact"]
    assert rows[1]["top1_changed"] == 0
    leaks = [row["leak"] for row in rows if "again" not in row["conversion"]]
    assert leaks[-1] < leaks[-2] < leaks[-3]


def test_only_attention_by_position_is_converted():
    sizes = {"width": 18, "depth": 1, "ffn": 5}
    assert convertible(AttentionNet("quadratic", **sizes))
    assert not convertible(AttentionNet("learned_axial", content=True, **sizes))
    assert not convertible(ConvNet(**sizes))


def test_the_page_states_what_was_measured(rows):
    content = {
        "command": "python -m evidence.pretrained",
        "hardware": {"processor": "a processor", "threads": 1},
        "versions": {"torch": "2.0"},
        "revision": "abc",
        "batch": BATCH,
        "rounds": 1,
        "busy": True,
        "data": {"name": "digits", "tests": 360},
        "rows": rows,
    }
    text = page(content)
    assert "\n\n\n" not in text
    assert "all 360 test images" in text
    assert "Other programs ran" in text
    assert f"{rows[0]['accuracy_after']:.2%}" in text
