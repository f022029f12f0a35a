"""The example that fine-tunes a converted network, on pictures of three colours."""

import runpy
import sys

import pytest
import timm
from tests.lab.test_own_data import draw
from tests.test_docs import FINE_TUNE
from torch import nn

from convattn import save_network
from convattn.models import ResNet

pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporter's own code
MEAN = (0.5, 0.4, 0.3)


@pytest.fixture
def fine_tune(tmp_path, monkeypatch, capfd, without_type_checks):
    """Runs the example with some words on a folder of pictures, and returns what it prints.

    Without the type checks, for which the symbol in place of the number of images is no integer.
    """
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "pictures", 10)

    def run_with(words: str) -> str:
        options = "--size 16 --epochs 2 --average 0.5"
        monkeypatch.setattr(
            sys, "argv", [FINE_TUNE.name, "pictures", *f"{words} {options}".split()]
        )
        runpy.run_path(str(FINE_TUNE), run_name="__main__")
        return capfd.readouterr().out

    return run_with


def create_model(name, pretrained, *, in_chans, num_classes):
    """Stands for timm's, which would download weights."""
    assert (name, pretrained) == ("small", True)
    network = nn.Sequential(
        nn.Conv2d(in_chans, 5, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(5, 7, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(7, num_classes),
    )
    network.pretrained_cfg = {"mean": MEAN, "std": MEAN}
    return network


def test_soft_heads_of_a_timm_network_become_convolutions_again(fine_tune, monkeypatch):
    monkeypatch.setattr(timm, "create_model", create_model)
    printed = fine_tune("timm:small")
    assert "network to conv: exact (2 layers, 18 heads, float32)" in printed
    assert "6 of 6 decisions agree" in printed


def test_gates_that_open_keep_a_saved_network_attention(fine_tune):
    save_network(ResNet(1, num_classes=3, width=5).eval(), "cnn")
    printed = fine_tune("cnn --content --include stages.3.*")
    assert "attention before training, exact: " in printed
    assert "it stays attention: content has up to " in printed
    assert "6 of 6 decisions agree" in printed
