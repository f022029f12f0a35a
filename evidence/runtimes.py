"""Files of ONNX in runtimes, in float32 on one thread."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Run = Callable[[Tensor], Any]


def onnx_runtime(file: Path) -> Run:
    """Opens a file in ONNX Runtime; the function returns a tensor, or a list where there are several."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(images: Tensor) -> Any:
        results = [torch.tensor(result) for result in session.run(None, {name: images.numpy()})]
        return results[0] if len(results) == 1 else results

    return run


def openvino(file: Path) -> Run:
    """Opens a file of one output in OpenVINO."""
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = import_module("openvino").Core().compile_model(file, "CPU", options)
    return lambda images: torch.from_numpy(compiled([images.numpy()])[0].copy())
