import pytest
import torch
from tests.lab.run_cases import few_digits

from convattn.lab.speed_net import SpeedNet
from convattn.models import AttentionNet, ConvNet
from evidence.pretrained.__main__ import KERNELS, conversions, convertible
from evidence.trained_networks.measure import Bench


@pytest.fixture(scope="module")
def rows():
    torch.manual_seed(0)
    network = SpeedNet(widths=(3, 5), in_channels=1, mixing="attention", sharpness=1.0).eval()
    return list(conversions(Bench(few_digits(), 1), "small", network))


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
