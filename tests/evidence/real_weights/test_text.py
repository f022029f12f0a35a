"""Reading text: boxes, lines and letters, and the ONNX files of the networks."""

import numpy as np
import onnx
import pytest
import torch

from evidence.real_weights.onnx_networks import rewrite
from evidence.real_weights.text import boxes_of, cut, read_line
from evidence.runtimes import onnx_runtime


def test_boxes_grow_as_their_area_and_perimeter_say():
    mask = torch.zeros(40, 60, dtype=torch.bool)
    mask[20:30, 5:45] = True
    mask[2:10, 30:50] = True
    mask[0:3, 0:3] = True
    assert boxes_of(mask) == [(0, 15, 25, 55), (14, 36, 0, 51)]


def test_lines_are_scaled_to_one_height_and_padded_or_squeezed():
    page = torch.ones(1, 3, 40, 60)
    boxes = [(0, 10, 0, 20), (10, 20, 0, 60)]
    padded, squeezed = (cut(page, boxes, (5, 12), squeeze=squeeze) for squeeze in (False, True))
    assert (padded.shape, squeezed.shape) == ((2, 3, 5, 30), (2, 3, 5, 12))
    assert padded.sum(-1)[:, 0, 0].round().tolist() == [10, 30]
    assert squeezed.sum(-1)[:, 0, 0].round().tolist() == [10, 12]


@pytest.mark.parametrize(
    ("best", "text"), [([0, 1, 1, 0, 1, 2, 2, 3], "aab "), ([], ""), ([0, 0], ""), ([2], "b")]
)
def test_letters_are_read_once_each_unless_a_blank_parts_them(best, text):
    assert read_line(best, ["", "a", "b", " "]) == text


def test_onnx_is_rewritten_without_changing_what_it_computes(tmp_path):
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    weight = np.random.default_rng(0).standard_normal((5, 7, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Constant", [], ["weight"], value=onnx.numpy_helper.from_array(weight)),
        helper.make_node("Pad", ["x", "pads"], ["padded"], mode="reflect"),
        helper.make_node("Transpose", ["padded"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["turned", "weight"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "padded in the middle",
        [helper.make_tensor_value_info("x", float32, [1, 11, 7])],
        [helper.make_tensor_value_info("y", float32, None)],
        [onnx.numpy_helper.from_array(np.array([0, 2, 0, 0, 1, 0]), "pads")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    rewritten = rewrite(tmp_path / "model.onnx")
    kinds = [node.op_type for node in rewritten.graph.node]
    assert kinds == ["Transpose", "Pad", "Transpose", "Transpose", "Conv"]
    values = (*rewritten.graph.value_info, *rewritten.graph.output)
    axes = {one.name: len(one.type.tensor_type.shape.dim) for one in values}
    assert axes["y"] == 3
    onnx.save(rewritten, tmp_path / "rewritten.onnx")
    x = torch.randn(1, 11, 7)
    before, after = (onnx_runtime(tmp_path / f"{name}.onnx")(x) for name in ("model", "rewritten"))
    assert before.shape == (1, 5, 12)
    assert torch.equal(before, after)
