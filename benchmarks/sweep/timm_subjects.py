"""The networks of timm: of every module that holds a convolution, the architecture with the fewest parameters."""

from functools import partial

import timm
import torch
from benchmarks.sweep.subjects import Built, Home, Subject, WithoutConvolutionError
from torch import nn

__all__ = ["HOME"]


def _subject(module: str) -> Subject:
    """Chooses the architecture of a module with the fewest parameters among those that hold a convolution."""
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
    if not found:
        raise WithoutConvolutionError(f"none of its {len(timm.list_models(module=module))} architectures holds one")
    remark = f"not weighed, because they cannot be built without values: {', '.join(unbuilt)}" if unbuilt else ""
    name = min(found)[1]
    return Subject(name, partial(_build, name), remark)


def _build(name: str) -> Built:
    """Builds an architecture and draws one image of its own size."""
    network = timm.create_model(name)
    return Built(network, (torch.randn(1, *network.default_cfg["input_size"]),))


HOME = Home("timm", ("timm",), timm.list_modules, _subject)
