"""Replaced networks leave PyTorch: no softmax and no attention in ONNX, and the same classes in onnxruntime."""

import copy

import onnx
import onnxruntime
import pytest
import torch
from tests.heads.report_cases import (
    attention_maps,
    images,
    outputs,
    report_of,
    timm_vit,
)

from convattn.budget import assert_within_budget, roundings
from convattn.heads.replace import replace_heads
from convattn.heads.replaceable_heads import every_head

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


def test_no_softmax_and_no_attention_is_left(tmp_path, without_type_checks):
    network, x = timm_vit(depth=1), images()
    report = report_of(network, attention_maps(network, x))
    made, record = replace_heads(network, report, heads=every_head(report))
    assert len(record.layers_without_softmax) == 1
    kinds, run = exported(made, x, tmp_path)
    assert not kinds & ATTENTION
    hi = outputs(copy.deepcopy(made).double(), x.double())
    assert_within_budget(run(x), hi, roundings(outputs, made, x))
