"""Files for ONNX Runtime and OpenVINO, loaded so that they are called with arrays and show outputs of layers."""

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from convattn.errors import (
    ArgumentError,
    ConversionError,
    UnknownNameError,
    optional_module,
    require_name,
)

_QUANTISED = re.compile("Quantize|QLinear|Integer$|NBits$")
"""Operations of ONNX and OpenVINO on few bits."""

Options = Mapping[str, Any] | None
"""Arguments of a runtime beside the file; None computes on the CPU in float32."""

_SESSION_OPTIONS = ("sess_options", "providers", "provider_options", "disabled_optimizers")
"""Arguments of ONNX Runtime's session; it ignores others."""

_NO_LAYERS = ("Constant", "Result")
"""Operations of OpenVINO that compute nothing."""


@dataclass
class Session:
    """A model that a runtime has loaded; called with arrays of numpy in order or by name, it returns arrays."""

    words: str  # The file and its runtime
    quantised: bool  # Whether it is seen to compute with few bits
    inputs: dict[str, Any]  # Dtype of each input
    fixed: int | None  # How many images its first input takes at once; None: any number
    layers: dict[str, int]  # Places of the outputs of layers among the results
    compute: Callable[[dict[str, Any]], Any]  # From arrays by name to a sequence of arrays

    def __call__(self, *positional: Any, **named: Any) -> list[Any]:
        """Runs the model on all images, in batches of its size if its file fixes one, which outputs must be of then."""
        values = named or dict(zip(self.inputs, positional, strict=False))
        if set(values) != set(self.inputs) or len(values) != len(positional) + len(named):
            came = ", ".join(named) or str(len(positional))
            raise ArgumentError(
                f"images must be the inputs of the model ({', '.join(self.inputs)}), but are {came}"
            )
        arrays = {name: _as_input(name, x, self.inputs[name]) for name, x in values.items()}
        first = arrays[next(iter(self.inputs))]
        count = len(first) if first.ndim else 1
        size = self.fixed or count
        if size == count:
            return list(self.compute(arrays))
        batches = []
        for start in range(0, count, size):
            # the last image fills up the last batch
            places = np.arange(start, start + size).clip(max=count - 1)
            batch = {}
            for name, x in arrays.items():
                batch[name] = x[places] if x.ndim and len(x) == count else x
            outputs = self.compute(batch)
            if any(y.shape[:1] != (size,) for y in outputs):
                raise ArgumentError(
                    f"images must be {size}, as many as the model takes at once, because it does not return one output"
                    " for each"
                )
            batches.append([y[: count - start] for y in outputs])
        return [np.concatenate(several) for several in zip(*batches, strict=True)]


def _as_input(name: str, x: Any, dtype: Any) -> np.ndarray:
    """Returns an array in the dtype of an input; raises ArgumentError if whole numbers would be other numbers."""
    array = np.asarray(x)
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    if cast.dtype.kind in "iu" and not np.array_equal(cast, array):
        raise ArgumentError(f"images must be whole numbers of {cast.dtype} for the input {name}")
    return cast


Load = Callable[[Sequence[str]], Session]
"""Loads a file so that the layers of given names are outputs, too."""


def open_file(path: Path, runtime: str | None, options: Options) -> tuple[Load, Session]:
    """Loads a file; returns what loads it again, and the model.

    Raises ArgumentError if there is no such file, its kind is unknown or the runtime has no such option, and
    ConversionError if it cannot be loaded.
    """
    runtimes = {"onnxruntime": _in_onnxruntime, "openvino": _in_openvino}
    kinds = {".onnx": "onnxruntime", ".xml": "openvino"}
    kind = runtime or kinds.get(path.suffix.lower())
    if not path.is_file() or kind is None:
        raise ArgumentError(
            f"other must be a file of the kind .onnx or .xml that exists, but is {str(path)!r}"
        )
    require_name("runtime", kind, runtimes)
    load = partial(runtimes[kind], path, options)
    try:
        return load, load([])
    except (ImportError, UnknownNameError):
        raise
    except Exception as error:  # a runtime may fail in any way
        raise ConversionError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _require_known(options: Mapping[str, Any], known: Collection[str], runtime: str) -> None:
    for name in options:
        require_name(f"option of {runtime}", name, known)


def _in_onnxruntime(path: Path, options: Options, names: Sequence[str]) -> Session:
    runtime = optional_module("onnxruntime", "export")
    source, quantised, values = _read_onnx(path, names)
    if options is None:
        options = {"providers": ["CPUExecutionProvider"]}
    _require_known(options, _SESSION_OPTIONS, "ONNX Runtime")
    session = runtime.InferenceSession(source, **options)
    inputs = {}
    fixed = None
    for one in session.get_inputs():
        dtype = one.type.removeprefix("tensor(").removesuffix(")")
        if dtype == "float":
            dtype = "float32"  # numpy's float is float64
        if not inputs and one.shape and isinstance(one.shape[0], int):
            fixed = one.shape[0]
        inputs[one.name] = dtype
    outputs = [one.name for one in session.get_outputs()]
    layers = {layer: outputs.index(value) for layer, value in values.items()}
    words = f"{path.name} in ONNX Runtime {runtime.__version__}"
    return Session(words, quantised, inputs, fixed, layers, partial(session.run, None))


def _read_onnx(path: Path, names: Sequence[str]) -> tuple[str | bytes, bool, dict[str, str]]:
    """Reads an ONNX file, and makes the values of layers outputs; other files are left to the runtime.

    Returns the path, or the model with further outputs; whether it computes with few bits; and the name of the value
    that each layer gives. Torch's exporter writes the names of modules beside each node, the last node of a layer gives
    its value.
    """
    if path.suffix.lower() != ".onnx" or find_spec("onnx") is None:
        return str(path), False, {}
    onnx = optional_module("onnx", "export")
    model = onnx.load(str(path), load_external_data=bool(names))
    values = {}
    for node in model.graph.node:
        for one in node.metadata_props:
            if one.key.endswith("name_scopes"):
                scopes = ast.literal_eval(one.value)
                if len(scopes) > 1 and scopes[-2] in names:
                    values[scopes[-2]] = node.output[0]
    present = [one.name for one in model.graph.output]
    for value in set(values.values()) - set(present):
        model.graph.output.append(onnx.ValueInfoProto(name=value))
    quantised = any(_QUANTISED.search(node.op_type) for node in model.graph.node)
    return model.SerializeToString() if names else str(path), quantised, values


def _in_openvino(path: Path, options: Options, names: Sequence[str]) -> Session:
    runtime = optional_module("openvino", "export")
    source, _, values = _read_onnx(path, names)
    core = runtime.Core()
    model = core.read_model(source)
    operations = [one for one in model.get_ordered_ops() if one.get_type_name() not in _NO_LAYERS]
    outputs = {}
    for one in operations:
        layer = one.get_friendly_name().partition("/")[0].removeprefix("__module.")
        if layer in names and layer not in values:
            outputs[layer] = one.output(0)
    model.add_outputs([*outputs.values()])
    for layer, output in outputs.items():
        values[layer] = output.get_any_name()
    places = {}
    for place, output in enumerate(model.outputs):
        for name in output.get_names():
            places[name] = place
    if options is None:
        options = {"INFERENCE_PRECISION_HINT": "f32"}
    known = core.get_property("CPU", "SUPPORTED_PROPERTIES")
    _require_known(options, [*known, "CACHE_DIR"], "OpenVINO")
    compiled = core.compile_model(model, "CPU", {**options})
    inputs = {}
    fixed = None
    for one in compiled.inputs:
        first = next(iter(one.get_partial_shape()), None)
        if not inputs and first is not None and first.is_static:
            fixed = first.get_length()
        inputs[one.get_any_name()] = one.get_element_type().to_dtype()
    precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    version = runtime.__version__.partition("-")[0]
    return Session(
        words=f"{path.name} in OpenVINO {version} ({precision})",
        quantised=any(_QUANTISED.search(one.get_type_name()) for one in operations),
        inputs=inputs,
        fixed=fixed,
        layers={layer: places[value] for layer, value in values.items()},
        compute=lambda arrays: compiled(arrays).to_tuple(),
    )
