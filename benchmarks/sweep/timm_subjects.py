"""The networks of timm: of every module that holds a convolution, the architecture with the fewest parameters.

Finding them builds every architecture, without values. What was found for one version of timm is kept beside this
file, and is made anew by

    python -m benchmarks.sweep.timm_subjects
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from benchmarks.sweep.subjects import Built, Home, Subject, WithoutConvolutionError
from torch import nn

from convattn.files import write_atomically

__all__ = ["HOME"]

_KEPT = Path(__file__).with_name("timm_smallest.json")


def _smallest(module: str) -> dict[str, Any]:
    """Finds the architecture of a module with the fewest parameters among those that hold a convolution."""
    found, unbuilt = [], []
    for name in timm.list_models(module=module):
        with torch.device("meta"):
            try:
                network = timm.create_model(name)
            except Exception:  # noqa: BLE001 - some cannot be built without values; others of the module can
                unbuilt.append(name)
                continue
        if any(isinstance(part, nn.modules.conv._ConvNd) for part in network.modules()):
            found.append((sum(parameter.numel() for parameter in network.parameters()), name))
    name = min(found)[1] if found else None
    return {"name": name, "with_convolution": len(found), "not_built": unbuilt}


def _subject(module: str) -> Subject:
    """Looks the architecture up, or finds it where another version of timm is installed."""
    kept = json.loads(_KEPT.read_text(encoding="utf-8")) if _KEPT.exists() else {"timm": None}
    chosen = kept["modules"][module] if kept["timm"] == timm.__version__ else _smallest(module)
    if chosen["name"] is None:
        raise WithoutConvolutionError("none of its architectures holds one")
    unbuilt = ", ".join(chosen["not_built"])
    remark = f"not weighed, because they cannot be built without values: {unbuilt}" if unbuilt else ""
    return Subject(chosen["name"], partial(_build, chosen["name"]), remark)


def _build(name: str) -> Built:
    """Builds an architecture and draws one image of its own size."""
    network = timm.create_model(name)
    return Built(network, (torch.randn(1, *network.default_cfg["input_size"]),))


HOME = Home("timm", ("timm",), timm.list_modules, _subject)


if __name__ == "__main__":
    content = {"timm": timm.__version__, "modules": {module: _smallest(module) for module in timm.list_modules()}}
    write_atomically(_KEPT, json.dumps(content, indent=1) + "\n")
