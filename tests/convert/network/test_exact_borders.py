"""Networks whose attention becomes normalised convolutions: the same network, also in files that know no attention."""

import pytest
import torch
from torch import nn

from convattn import load_network, network_to_attention, network_to_conv, save_network
from convattn.budget import assert_within_budget, references
from convattn.convert import to_conv
from convattn.encodings import Quadratic
from convattn.errors import UnsupportedModelError
from convattn.lab.speed_net import SpeedNet
from convattn.layers import NormalisedConv, RelativeAttention2d
from convattn.models import AttentionNet

NETWORKS = {
    "quadratic": lambda: AttentionNet("quadratic", width=8, depth=2, heads=4, ffn=8, image_size=16),
    "distance": lambda: AttentionNet("distance", width=8, depth=1, heads=4, ffn=8, image_size=16),
    "speed net": lambda: SpeedNet(widths=[6, 8], sharpness=3.0),
}


def convert(name, **options):
    torch.manual_seed(0)
    network, images = NETWORKS[name]().eval(), torch.randn(4, 3, 16, 16)
    return network, images, *network_to_conv(network, images=images, borders="exact", **options)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_network_is_exact(name):
    network, images, made, certificate = convert(name)
    assert certificate.verdict == "exact"
    assert certificate.exact
    assert certificate.top1_changed == 0
    stem = {"convolution"} if name == "speed net" else set()  # of hard heads
    assert {layer.path for layer in certificate.layers} == stem | {"normalised convolution"}
    assert "exact at borders; kernels cut off at most" in certificate.summary()
    assert network_to_conv(network, images=images)[1].verdict != "exact"  # as plain convolutions
    with torch.no_grad():
        hi, lows = references(lambda network, x: network(x), network, images)
        assert_within_budget(made(images), hi, lows)


def test_it_is_saved_and_loaded(tmp_path):
    _, images, made, certificate = convert("speed net")
    loaded = load_network(save_network(made, tmp_path / "made", certificate=certificate)).eval()
    with torch.no_grad():
        assert torch.equal(loaded(images), made(images))


def test_it_does_not_become_attention_again():
    _, images, made, _ = convert("quadratic")
    message = r"cannot convert 2 modules of AttentionNet; .*\n  .* \(NormalisedConv\): it is attention already"
    with pytest.raises(UnsupportedModelError, match=message):
        network_to_attention(made, images=images)


def test_a_changed_score_fails_the_certificate(monkeypatch):
    honest = to_conv.normalise

    def changed(*arguments):
        choice = honest(*arguments)
        choice.conv.scores[0].data[:, 0] += 3.0
        choice.conv.scores[0].data[:, choice.conv.taps[0] // 2] += 1e-3
        return choice

    monkeypatch.setattr(to_conv, "normalise", changed)
    assert convert("quadratic")[-1].verdict == "failed"


@pytest.mark.filterwarnings("ignore")  # of the exporter's own code
def test_an_onnx_file_of_standard_operators_runs_elsewhere(tmp_path, without_type_checks):
    onnx, onnxruntime, openvino = (
        pytest.importorskip(one) for one in ("onnx", "onnxruntime", "openvino")
    )
    network, images, made, _ = convert("distance")
    file = str(tmp_path / "network.onnx")
    torch.onnx.export(made.eval(), (images,), file, dynamo=True, verbose=False)
    graph = onnx.load(file)
    assert {node.domain for node in graph.graph.node} <= {"", "ai.onnx"}
    assert not graph.functions
    assert "Softmax" not in {node.op_type for node in graph.graph.node}
    with torch.no_grad():
        hi, lows = references(lambda network, x: network(x), network, images)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert_within_budget(torch.from_numpy(scores), hi, lows)
    compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert_within_budget(torch.from_numpy(compiled([images.numpy()])[0].copy()), hi, lows)


def test_layers_that_cannot_be_exact_are_left_or_stay_plain():
    far = RelativeAttention2d(
        3, 2, num_heads=1, encoding=Quadratic(1, 2, centres=[[15.5, 0.5]], sharpness=0.6)
    )
    network, images = (
        nn.Sequential(far, RelativeAttention2d(2, 2, num_heads=2, encoding="quadratic")),
        torch.randn(2, 3, 9, 9),
    )
    made, certificate = network_to_conv(network, images=images, borders="exact")
    assert "so far beyond the image" in certificate.left_alone[0].reason
    assert type(made[1]) is NormalisedConv
    assert type(network_to_conv(network, images=images, borders="auto")[0][0]) is nn.Conv2d
