"""Networks that ship as ONNX: read into modules by onnx2torch, and run as they are by onnxruntime."""

from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from evidence.real_weights.task import Package

ONNX2TORCH = Package("onnx2torch", "onnx2torch", "Apache-2.0")


def read_network(file: Path) -> nn.Module:
    """Makes a module of an ONNX file, with `nn.Conv1d` and the like for its convolutions, in evaluation mode."""
    return import_module("onnx2torch").convert(rewrite(file)).eval()


def rewrite(file: Path) -> Any:
    """Reads an ONNX file and writes it as onnx2torch takes it, with the same function.

    Constants become weights, padding by reflection along an axis that torch does not pad goes through a transposition,
    and the outputs of convolutions say how many axes they have.

    Args:
        file: The file.

    Returns:
        The model, an `onnx.ModelProto`.
    """
    onnx = import_module("onnx")
    model = onnx.load(file)
    graph, nodes = model.graph, []
    for node in graph.node:
        if node.op_type == "Constant":
            weight = onnx.TensorProto()
            weight.CopyFrom(node.attribute[0].t)
            weight.name = node.output[0]
            graph.initializer.append(weight)
        else:
            nodes.append(node)
    weights = {one.name: one for one in graph.initializer}
    nodes = [new for node in nodes for new in _padded_at_the_end(onnx, graph, node, weights)]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    for node in nodes:
        if node.op_type == "Conv":
            axes = [None] * len(weights[node.input[1]].dims)
            graph.value_info.append(
                onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, axes)
            )
    return onnx.shape_inference.infer_shapes(model)


def _padded_at_the_end(onnx: Any, graph: Any, node: Any, weights: dict[str, Any]) -> list[Any]:
    """Replaces padding by reflection along the middle one of three axes by padding along the last one."""
    modes = [attribute.s for attribute in node.attribute if attribute.name == "mode"]
    if node.op_type != "Pad" or modes != [b"reflect"]:
        return [node]
    pads = onnx.numpy_helper.to_array(weights[node.input[1]]).tolist()
    if len(pads) != 6 or not (pads[1] or pads[4]):
        return [node]
    name, swap = node.output[0], [0, 2, 1]
    moved = [pads[axis + half] for half in (0, 3) for axis in swap]
    graph.initializer.append(
        onnx.helper.make_tensor(f"{name} pads", onnx.TensorProto.INT64, [6], moved)
    )
    return [
        onnx.helper.make_node("Transpose", [node.input[0]], [f"{name} turned"], perm=swap),
        onnx.helper.make_node(
            "Pad", [f"{name} turned", f"{name} pads"], [f"{name} padded"], mode="reflect"
        ),
        onnx.helper.make_node("Transpose", [f"{name} padded"], [name], perm=swap),
    ]
