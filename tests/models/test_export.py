"""Networks that leave PyTorch's classes behind, run by a process that has no convattn."""

import subprocess
import sys

import pytest
import torch

from convattn.models import AttentionNet
from convattn.testing.budget import assert_within_budget

ALONE = """
import sys
sys.modules["convattn"] = None  # an import of it would fail
import torch
images = torch.load("images.pt")
"""
EXPORTED = ALONE + "torch.save(torch.export.load('network.pt2').module()(images), 'scores.pt')"
ONNX = (
    ALONE
    + """
import onnxruntime
session = onnxruntime.InferenceSession("network.onnx", providers=["CPUExecutionProvider"])
(scores,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
torch.save(torch.from_numpy(scores), "scores.pt")
"""
)
NETWORKS = {
    "quadratic": {"encoding": "quadratic"},
    "fourier": {"encoding": "generalized_quadratic"},
    "content": {"encoding": "learned_axial", "content": True},
}


def draw(name):
    torch.manual_seed(0)
    return AttentionNet(**NETWORKS[name], width=16, depth=2, heads=4, ffn=16, image_size=16).eval()


@pytest.fixture(autouse=True)
def images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.save(drawn, "images.pt")
    return drawn


def assert_agrees(network, program, images):
    """Runs a program in a process of its own and holds its scores against the network's."""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    with torch.no_grad():
        lo, hi = network(images), network.double()(images.double())
    assert_within_budget(torch.load("scores.pt").detach(), hi, lo)


@pytest.mark.parametrize("name", NETWORKS)
def test_exported_program_runs_without_convattn(name, images):
    network = draw(name)
    torch.export.save(torch.export.export(network, (images,)), "network.pt2")
    assert_agrees(network, EXPORTED, images)


@pytest.mark.filterwarnings("ignore")  # of the exporter's own code
@pytest.mark.parametrize(
    "name",
    ["quadratic", pytest.param("fourier", marks=pytest.mark.slow), pytest.param("content", marks=pytest.mark.slow)],
)
def test_onnx_runs_without_convattn(name, images):
    network = draw(name)
    torch.onnx.export(network, (images,), "network.onnx", dynamo=True, verbose=False)
    assert_agrees(network, ONNX, images)
