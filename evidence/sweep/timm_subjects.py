"""The networks of timm: of every module that holds a convolution, the architecture with the fewest parameters.

Finding them builds every architecture, without values. What was found for one version of timm is kept beside this
file, and is made anew by

    python -m evidence.sweep.timm_subjects
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from convattn.files import write_atomically
from evidence.sweep.subjects import Built, Home, Subject, WithoutConvolutionError

_KEPT = Path(__file__).with_name("timm_smallest.json")

_BUILT_WITH = {
    "naflexvit": (
        "naflexvit_base_patch16_gap",
        {"embed_proj_type": "conv"},
        "without, it holds no convolution",
    ),
    "deepseek_vit": (
        "deepseek_vit_412m",
        {"depth": 4},
        "its 32 blocks take more memory in float64 than there was",
    ),
}
"""Modules whose smallest architecture is built with options, and why."""


def _smallest(module: str) -> str | None:
    """Finds the architecture of a module with the fewest parameters among those that hold a convolution."""
    found = []
    for name in timm.list_models(module=module):
        with torch.device("meta"):
            network = timm.create_model(name)
        if any(isinstance(part, nn.modules.conv._ConvNd) for part in network.modules()):
            found.append((sum(parameter.numel() for parameter in network.parameters()), name))
    return min(found)[1] if found else None


def _subject(module: str) -> Subject:
    """Looks the architecture up, or finds it where another version of timm is installed."""
    if module in _BUILT_WITH:
        name, options, reason = _BUILT_WITH[module]
        words = ", ".join(f"{key}={value!r}" for key, value in options.items())
        return Subject(name, partial(_build, name, options), f"built with {words}: {reason}")
    kept = json.loads(_KEPT.read_text(encoding="utf-8"))
    name = kept["modules"][module] if kept["timm"] == timm.__version__ else _smallest(module)
    if name is None:
        raise WithoutConvolutionError(
            f"none of its architectures holds one: {', '.join(timm.list_models(module=module))}"
        )
    return Subject(name, partial(_build, name, {}))


def _build(name: str, options: dict[str, Any]) -> Built:
    """Builds an architecture and draws one image of its own size."""
    network = timm.create_model(name, **options)
    return Built(network, (torch.randn(1, *network.default_cfg["input_size"]),))


HOME = Home("timm", ("timm",), timm.list_modules, _subject)


if __name__ == "__main__":
    content = {
        "timm": timm.__version__,
        "modules": {module: _smallest(module) for module in timm.list_modules()},
    }
    write_atomically(_KEPT, json.dumps(content, indent=1) + "\n")
