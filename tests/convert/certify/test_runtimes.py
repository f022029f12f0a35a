"""ONNX Runtime and OpenVINO: right files pass, faults are found and named, and mistakes in the call are explained."""

import sys
from itertools import cycle

import numpy as np
import onnx
import onnxruntime.quantization
import openvino
import pytest
import torch
from tests.convert.certify.certify_cases import FAULTS, classifier, damaged
from torch import nn

from convattn import certify, network_to_attention
from convattn.convert.runtimes import Session
from convattn.errors import (
    ArgumentError,
    ConversionError,
    MissingDependencyError,
    UnknownNameError,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of exporters, about what they will change

RUNTIMES = ("onnxruntime", "openvino")


@pytest.fixture(scope="module")
def case():
    return classifier()


def export(network, images, path, *, batch=None):
    """Writes an ONNX file, for any number of images or for `batch`."""
    shapes = None if batch else ({0: torch.export.Dim("batch")},)
    torch.onnx.export(
        network,
        (images[: batch or 2],),
        path,
        dynamo=True,
        verbose=False,
        dynamic_shapes=shapes,
        external_data=False,
    )
    return path


@pytest.fixture(scope="module")
def file(case, tmp_path_factory):
    return export(*case, tmp_path_factory.mktemp("onnx") / "network.onnx")


def save_openvino(network, images, path, *, half=False):
    openvino.save_model(
        openvino.convert_model(network, example_input=images), path, compress_to_fp16=half
    )
    return path


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_right_file_is_exact(case, file, runtime):
    certificate = certify(case[0], file, case[1], runtime=runtime)
    assert certificate.verdict == "exact", certificate.summary()
    assert certificate.layers > 10
    names = {"onnxruntime": f"ONNX Runtime {onnxruntime.__version__}", "openvino": "OpenVINO "}
    assert certificate.other.startswith(f"network.onnx in {names[runtime]}")


def test_an_ending_in_capitals_is_the_same(case, file, tmp_path):
    capitals = tmp_path / "NETWORK.ONNX"
    capitals.write_bytes(file.read_bytes())
    for runtime in (None, "openvino"):
        assert certify(case[0], capitals, case[1], runtime=runtime).verdict == "exact", runtime


def change_kernel(file, layer, change, path):
    """Copies a file with the kernel of a convolution changed."""
    model = onnx.load(file)
    (name,) = [
        node.input[1]
        for node in model.graph.node
        if node.op_type == "Conv" and any(f"'{layer}'" in one.value for one in node.metadata_props)
    ]
    (kernel,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    weight = change(onnx.numpy_helper.to_array(kernel).copy())
    kernel.CopyFrom(onnx.numpy_helper.from_array(weight.astype(np.float32), name))
    onnx.save(model, path)
    return path


def one_weight(kernel):
    kernel[3, 0, 1, 2] += 1e-3
    return kernel


CHANGES = {
    "one weight": one_weight,
    "turned round": lambda kernel: np.ascontiguousarray(kernel[..., ::-1]),
    "half precision": lambda kernel: kernel.astype(np.float16),
}


@pytest.mark.parametrize(("name", "runtime"), [*zip(CHANGES, cycle(RUNTIMES))])
def test_a_fault_in_a_file_is_found_and_named(case, file, tmp_path, name, runtime):
    path = change_kernel(file, "each", CHANGES[name], tmp_path / "wrong.onnx")
    certificate = certify(case[0], path, case[1], runtime=runtime)
    assert certificate.verdict in ("close", "different")
    assert certificate.first == "each"


def test_a_model_of_openvino_names_its_layers(case, tmp_path):
    network, images = case
    assert (
        certify(network, save_openvino(network, images, tmp_path / "right.xml"), images).verdict
        == "exact"
    )
    change, layer = FAULTS["a weight by 1e-4"]
    wrong = certify(
        network, save_openvino(damaged(network, change), images, tmp_path / "wrong.xml"), images
    )
    assert wrong.verdict in ("close", "different")
    assert wrong.first == layer.replace("conv", "norm")


def test_weights_of_16_bits_are_seen(case, tmp_path):
    certificate = certify(case[0], save_openvino(*case, tmp_path / "half.xml", half=True), case[1])
    assert certificate.verdict in ("close", "different")
    assert certificate.first is not None


def test_attention_in_a_file_for_four_images_is_exact_on_nine(case, tmp_path):
    network, images = case
    attention, _ = network_to_attention(network, images=images)
    path = export(attention, images, tmp_path / "attention.onnx", batch=4)
    for runtime in RUNTIMES:
        certificate = certify(attention, path, images, runtime=runtime)
        words = certificate.summary()
        assert (certificate.verdict, certificate.decisions) == ("exact", 9), words
        assert "with batches of 4 computes" in words, words
        assert "on the 9 images given" in words, words


def test_int8_is_never_exact_and_has_an_interval(case, file, tmp_path):
    path = tmp_path / "int8.onnx"
    model = onnx.load(file)
    del model.graph.value_info[:]  # shapes that the quantiser's own inference contradicts
    onnxruntime.quantization.quantize_dynamic(model, path)
    certificate = certify(case[0], path, case[1], tolerance=0.9)
    assert certificate.quantised
    assert certificate.verdict in ("close", "different")
    assert certificate.interval[0] < 1


def test_a_precision_is_named_and_a_compiled_model_is_a_function(case, file):
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    certificate = certify(case[0], file, case[1], runtime="openvino", options=options)
    assert certificate.other.endswith("(f32)")
    compiled = openvino.Core().compile_model(file, "CPU", options)
    assert certify(case[0], compiled, case[1]).verdict == "exact"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_options_that_the_runtime_would_ignore_are_refused(case, file, runtime):
    with pytest.raises(UnknownNameError, match=r"unknown option of .* 'nope'\. Known: "):
        certify(case[0], file, case[1], runtime=runtime, options={"nope": 1})


class Sum(nn.Module):
    """Two inputs, one by name, and outputs in a mapping."""

    def forward(self, x, scale):
        return {"sum": x + scale, "product": x * scale}


def test_inputs_by_name_and_several_outputs(tmp_path):
    images = {"x": torch.randn(3, 5), "scale": torch.randn(3, 5)}
    path = tmp_path / "sum.onnx"
    torch.onnx.export(Sum(), kwargs=images, f=path, dynamo=True, verbose=False, external_data=False)
    assert certify(Sum(), path, images).verdict == "exact"
    assert certify(Sum(), path, (images["x"], images["scale"])).verdict == "exact"
    swapped = certify(Sum(), path, (images["scale"], images["x"]))
    assert swapped.verdict == "exact"  # both are symmetric


def test_wrong_inputs_are_named(case, file):
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()

    class Named(nn.Module):
        def forward(self, pixels):
            return network(pixels)

    path = export(network, torch.randn(2, 12), file.with_name("linear.onnx"))
    with pytest.raises(
        ConversionError, match=r"images must be the inputs of the model \(input\), but are pixels"
    ):
        certify(Named(), path, {"pixels": torch.randn(2, 12)})
    with pytest.raises(ConversionError, match="does not run"):
        certify(nn.Flatten(), path, torch.randn(2, 13))


def test_a_file_that_is_no_model_is_named(case, tmp_path):
    for name in ("broken.onnx", "broken.xml"):
        (tmp_path / name).write_bytes(b"no model")
        with pytest.raises(ConversionError, match=rf"{name} cannot be loaded: "):
            certify(case[0], tmp_path / name, case[1])


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_that_is_not_installed_is_named(case, file, runtime, monkeypatch):
    monkeypatch.setitem(sys.modules, runtime, None)
    with pytest.raises(
        MissingDependencyError, match=rf"this needs {runtime}, which is not installed.*export"
    ):
        certify(case[0], file, case[1], runtime=runtime)


def test_layers_have_no_names_without_the_package_or_in_a_bare_file(
    case, file, tmp_path, monkeypatch
):
    model = onnx.load(file)
    for node in model.graph.node:
        node.ClearField("metadata_props")
    onnx.save(model, tmp_path / "bare.onnx")
    bare = certify(case[0], tmp_path / "bare.onnx", case[1])
    monkeypatch.setitem(sys.modules, "onnx", None)
    for certificate in (bare, certify(case[0], file, case[1])):
        assert (certificate.verdict, certificate.layers) == ("exact", 0)
        none = "where a difference begins: no layer could be matched by its name"
        assert none in certificate.not_covered


def test_an_unknown_runtime_is_refused(case, file, without_type_checks):
    with pytest.raises(
        UnknownNameError, match=r"unknown runtime 'tensorrt'\. Known: onnxruntime, "
    ):
        certify(case[0], file, case[1], runtime="tensorrt")


class Rotary(nn.Module):
    """A module with two outputs of one shape inside."""

    class Angles(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8))

        def forward(self, x):
            angle = x * self.weight
            return angle.cos(), angle.sin()

    def __init__(self):
        super().__init__()
        self.rotary, self.last = self.Angles(), nn.Linear(8, 3)

    def forward(self, x):
        cos, sin = self.rotary(x)
        return self.last(x * cos + x.flip(-1) * sin)


def test_no_layer_is_accused_by_another_of_its_outputs(tmp_path):
    torch.manual_seed(0)
    network, x = Rotary().eval(), torch.rand(8, 8)
    torch.onnx.export(network, (x,), tmp_path / "r.onnx", dynamo=True, verbose=False)
    for runtime in RUNTIMES:
        certificate = certify(network, tmp_path / "r.onnx", x, runtime=runtime)
        assert (certificate.verdict, certificate.first) == ("exact", None), runtime


class Add(nn.Module):
    def forward(self, x, b):
        return x + b


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("shape", [[1, 3], [3]])
@pytest.mark.parametrize("rows", ["n", 8])
def test_the_first_input_says_how_many_images_a_file_takes(rows, shape, runtime, tmp_path):
    def value(name, sizes):
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)

    inputs = [value("x", [rows, 3]), value("b", shape)]
    nodes = [onnx.helper.make_node("Add", ["x", "b"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, [value("y", [rows, 3])])
    opset = [onnx.helper.make_opsetid("", 13)]
    file = tmp_path / "add.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), file)
    given = torch.randn(8, 3), torch.randn(shape)
    assert certify(Add(), file, given, runtime=runtime).verdict == "exact"


@pytest.mark.parametrize("y", [np.zeros((5, 2)), np.zeros(())], ids=["time first", "a number"])
def test_outputs_that_are_not_of_single_images_are_not_cut(y):
    kinds = {"x": np.float32}
    session = Session(
        "a file", quantised=False, inputs=kinds, fixed=2, layers={}, compute=lambda _: [y]
    )
    assert session(torch.zeros(2, 3))[0] is y
    with pytest.raises(ArgumentError, match="images must be 2, as many as the model takes at once"):
        session(torch.zeros(3, 3))


def test_numbers_are_not_made_whole(tmp_path):
    def value(name, kind):
        return onnx.helper.make_tensor_value_info(name, kind, ["n", 3])

    nodes = [onnx.helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT)]
    inputs, outputs = [value("x", onnx.TensorProto.UINT8)], [value("y", onnx.TensorProto.FLOAT)]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs)
    opset = [onnx.helper.make_opsetid("", 13)]
    file = tmp_path / "bytes.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), file)
    assert certify(nn.Identity(), file, torch.tensor([[0.0, 7.0, 255.0]])).verdict == "exact"
    for wrong in (0.5, -1.0, 256.0):
        with pytest.raises(ConversionError, match="images must be whole numbers of uint8 for the"):
            certify(nn.Identity(), file, torch.full((1, 3), wrong))
