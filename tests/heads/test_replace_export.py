"""Replaced networks leave PyTorch: no softmax and no attention in ONNX, and the same classes in onnxruntime."""

import copy

import onnx
import onnxruntime
import pytest
import timm
import torch
from tests.heads.report_cases import (
    attention_maps,
    bert,
    every_head,
    images,
    outputs,
    report_of,
    timm_vit,
    torchvision_vit,
    words,
)
from torch import nn

from convattn.data import load_digits
from convattn.heads.replace import replace_convolutional_heads
from convattn.testing.budget import assert_within_budget, roundings

pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporter's own code

ATTENTION = {"Softmax", "Attention", "MultiHeadAttention", "QAttention", "GroupQueryAttention"}


def exported(network, x, folder):
    """The kinds of operators of the exported network, and a function that runs it."""
    file = folder / "network.onnx"
    batch = {0: torch.export.Dim("batch")}
    torch.onnx.export(network, (x,), file, dynamo=True, verbose=False, dynamic_shapes=(batch,))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    kinds = {node.op_type for node in onnx.load(file).graph.node}
    (name,) = (put.name for put in session.get_inputs())
    return kinds, lambda given: torch.from_numpy(session.run(None, {name: given.numpy()})[0])


CASES = {
    "timm": (timm_vit, images, (5, 7), 1),
    "torchvision": (torchvision_vit, lambda: images((28, 28)), (7, 7), 1),
    "bert": (bert, words, (11,), 0),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "timm" else pytest.mark.slow) for name in CASES]
)
def test_no_softmax_and_no_attention_is_left(name, tmp_path, without_type_checks):
    make, draw, grid, prefix = CASES[name]
    network, x = make(), draw()
    report = report_of(network, attention_maps(network, x), grid, prefix)
    chosen = every_head(report)
    made, record = replace_convolutional_heads(network, report, heads=chosen)
    assert len(record.layers_without_softmax) == 2
    kinds, run = exported(made, x, tmp_path)
    assert not kinds & ATTENTION
    hi = outputs(copy.deepcopy(made).double(), x.double() if x.is_floating_point() else x)
    assert_within_budget(run(x), hi, roundings(outputs, made, x))


def trained(network, digits):
    """Four epochs of handwritten digits."""
    optimiser, draw = (
        torch.optim.AdamW(network.parameters(), lr=3e-3),
        torch.Generator().manual_seed(0),
    )
    pixels, labels = digits
    for rows in torch.cat([torch.randperm(len(pixels), generator=draw) for _ in range(4)]).split(
        50
    ):
        loss = nn.functional.cross_entropy(network(pixels[rows]), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()


@pytest.mark.parametrize(
    "share",
    [0.5, pytest.param(1.0, marks=pytest.mark.slow)],
    ids=["half of the heads", "all heads"],
)
def test_a_trained_network_names_the_same_classes_in_onnxruntime(
    share, tmp_path, without_type_checks
):
    data = load_digits()
    x, tests = ((split.images.float() / 8 - 1) for split in (data.train, data.test))
    torch.manual_seed(0)
    sizes = {"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 10}
    network = timm.models.VisionTransformer(**sizes, embed_dim=36, depth=2, num_heads=3)
    network = trained(network, (x, data.train.labels))
    report = report_of(network, attention_maps(network, x[:50]), (4, 4))
    chosen = every_head(report)
    made, _ = replace_convolutional_heads(
        network, report, heads=chosen[: round(share * len(chosen))]
    )
    kinds, run = exported(made, tests[:2], tmp_path)
    assert bool(kinds & ATTENTION) == (share < 1)
    every = torch.cat([tests, x])[:500]
    torch_says, onnx_says = outputs(made, every).argmax(1), run(every).argmax(1)
    assert int((torch_says == onnx_says).sum()) == 500
    assert len(torch_says.unique()) > 5
