"""Networks that leave PyTorch's classes behind, run by a process that has no convattn."""

import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
import timm
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from convattn import RelativeAttention1d, RelativeAttention2d, certify, network_to_attention
from convattn.budget import assert_within_budget, references
from convattn.encodings.registry import ENCODINGS
from convattn.models import AttentionNet, ResNet

ALONE = """
import sys
sys.modules["convattn"] = None  # an import of it would fail
import torch
import onnxruntime
from pathlib import Path
images = torch.load("images.pt")
for file in Path().glob("*.pt2"):
    torch.save(torch.export.load(file).module()(images), f"{file}.scores")
for file in Path().glob("*.onnx"):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.save(torch.from_numpy(scores), f"{file}.scores")
"""
NETWORKS = {
    "quadratic": {"encoding": "quadratic"},
    "fourier": {"encoding": "generalized_quadratic"},
    "content": {"encoding": "learned_axial", "content": True},
}


CONVERTED = {
    "resnet18": lambda: ResNet(2, width=4),
    "timm resnet18": lambda: timm.create_model("resnet18", num_classes=5),
}
COMPILED = """
import torch
from convattn import network_to_attention
from convattn.models import ResNet
images = torch.load("images.pt")
torch.manual_seed(0)
network, _ = network_to_attention(ResNet(1, width=4).eval(), images=images)
torch.save(torch.compile(network, fullgraph=True, backend="aot_eager")(images).detach(), "compiled.scores")
"""


def draw(name):
    torch.manual_seed(0)
    return AttentionNet(**NETWORKS[name], width=16, depth=1, heads=4, ffn=16, image_size=16).eval()


@pytest.fixture(autouse=True)
def images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.save(drawn, "images.pt")
    return drawn


def run(program):
    """Runs a program in a process of its own."""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)


def assert_agrees(network, images, name):
    """Holds the scores that a program has left against the network's."""
    with torch.no_grad():
        hi, lows = references(lambda network, images: network(images), network, images)
    assert_within_budget(torch.load(f"{name}.scores").detach(), hi, lows, name)


@pytest.mark.filterwarnings("ignore")  # of the exporter's own code
@pytest.mark.parametrize(
    "as_onnx",
    [["quadratic"], pytest.param(["fourier", "content"], marks=pytest.mark.slow)],
    ids=str,
)
def test_exported_networks_run_without_convattn(as_onnx, images, without_type_checks):
    networks = {name: draw(name) for name in NETWORKS}
    for name, network in networks.items():
        torch.export.save(torch.export.export(network, (images,)), f"{name}.pt2")
        if name in as_onnx:
            torch.onnx.export(network, (images,), f"{name}.onnx", dynamo=True, verbose=False)
    run(ALONE)
    for file in (*(f"{name}.pt2" for name in networks), *(f"{name}.onnx" for name in as_onnx)):
        assert_agrees(networks[Path(file).stem], images, file)


@pytest.mark.filterwarnings("ignore")  # of the exporter's own code
@pytest.mark.parametrize(
    ("name", "impl"),
    [
        pytest.param("resnet18", "separable", marks=pytest.mark.slow),
        pytest.param("resnet18", "auto", marks=pytest.mark.slow),
        pytest.param("timm resnet18", "separable", marks=pytest.mark.slow),
        pytest.param("timm resnet18", "auto", marks=pytest.mark.slow),
    ],
)
def test_converted_networks_run_without_convattn_for_any_batch(
    name, impl, images, without_type_checks
):
    """Without the test run's type checks, for which the symbol in place of the batch is no integer."""
    torch.manual_seed(0)
    network, certificate = network_to_attention(CONVERTED[name]().eval(), impl=impl, images=images)
    assert certificate.passed
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(network, (images,), dynamic_shapes=(batch,))
    torch.export.save(program, "network.pt2")
    torch.onnx.export(program, (), "network.onnx", dynamo=True, verbose=False)
    more = torch.randn(5, *images.shape[1:])
    torch.save(more, "images.pt")
    run(ALONE)
    for file in ("network.pt2", "network.onnx"):
        assert_agrees(network.float(), more, file)


@pytest.mark.slow
def test_converted_networks_compile_to_one_graph(images):
    """In a process of its own: the type checks of the test run would break the graph."""
    torch.manual_seed(0)
    network = ResNet(1, width=4).eval()
    run(COMPILED)
    assert_agrees(network, images, "compiled")


@pytest.mark.parametrize("encoding", ["quadratic", "distance", "shift"])
def test_a_file_made_with_one_image_takes_any_number(encoding, without_type_checks, tmp_path):
    layer = RelativeAttention2d(3, 8, 3, padding=1, num_heads=9, encoding=encoding).eval()
    batch = ({0: torch.export.Dim("batch")},)
    file = tmp_path / "layer.onnx"
    image = (torch.randn(1, 3, 6, 7),)
    torch.onnx.export(layer, image, file, dynamo=True, verbose=False, dynamic_shapes=batch)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape[0] == session.get_outputs()[0].shape[0] == "batch"
    assert certify(layer, file, torch.randn(5, 3, 6, 7)).verdict == "exact"


def test_a_file_declares_no_size_that_it_cannot_take(without_type_checks, tmp_path):
    layer, file = RelativeAttention1d(3, 8, num_heads=2).eval(), tmp_path / "layer.onnx"
    sequences = (torch.randn(2, 3, 40),)
    for sizes in ({2: torch.export.Dim.AUTO}, {2: torch.export.Dim("size")}):
        with pytest.raises(torch.onnx.OnnxExporterError, match="leave out spatial sizes, on which"):
            torch.onnx.export(
                layer, sequences, file, dynamo=True, verbose=False, dynamic_shapes=(sizes,)
            )
    batch = ({0: torch.export.Dim.AUTO},)
    torch.onnx.export(layer, sequences, file, dynamo=True, verbose=False, dynamic_shapes=batch)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (declared,) = session.get_inputs()
    assert declared.shape[1:] == [3, 40]
    assert certify(layer, file, torch.randn(5, 3, 40)).verdict == "exact"
    for other in (30, 77):
        with pytest.raises(InvalidArgument, match=f"Got: {other} Expected: 40"):
            session.run(None, {declared.name: torch.randn(2, 3, other).numpy()})


@pytest.mark.parametrize("encoding", sorted({*ENCODINGS} - {"shift"}))
def test_every_encoding_is_exported_for_any_batch(encoding, without_type_checks):
    """Costs of paths depend on the number of images: comparing them must not pin it."""
    torch.manual_seed(0)
    layer = RelativeAttention2d(8, 8, num_heads=3, encoding=encoding).eval()
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(layer, (torch.randn(2, 8, 16, 16),), dynamic_shapes=batch)
    images = torch.randn(5, 8, 16, 16)
    hi, lows = references(lambda layer, images: layer(images), layer, images)
    assert_within_budget(program.module()(images), hi, lows, encoding)
