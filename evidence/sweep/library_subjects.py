"""Networks of libraries for pictures, medical volumes and sound, chosen by name in a file, with random weights."""

import json
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from evidence.sweep.subjects import Built, Home, Subject

NETWORKS = json.loads(Path(__file__).with_name("library_networks.json").read_text(encoding="utf-8"))
"""What builds each network, the shapes of its arguments, and options, by name."""

PACKAGES = (
    "segmentation-models-pytorch",
    "efficientnet-pytorch",
    "efficientnet-lite-pytorch",
    "monai",
    "pytorchcv",
    "asteroid",
    "demucs-infer",
    "encodec",
    "torchaudio",
    "torchcrepe",
    "vocos",
)


def _module(place: str) -> Any:
    """Imports a module that holds networks."""
    # torchaudio refuses a torch of another CUDA than its own, though nothing here runs on one
    with patch.object(torch.version, "cuda", None):
        return import_module(place)


def _build(family: str) -> Built:
    """Builds a network, and draws what it is run on."""
    row = NETWORKS[family]
    place, _, builder = row["network"].partition(":")
    network = attrgetter(builder)(_module(place))(**row["options"])
    generator = torch.Generator().manual_seed(0)
    arguments = tuple(torch.randn(shape, generator=generator) for shape in row["shapes"])
    return Built(network, arguments)


def _subject(family: str) -> Subject:
    """Looks a network up."""
    return Subject(family, partial(_build, family))


HOME = Home("libraries", PACKAGES, partial(list, NETWORKS), _subject, ways=("auto", "back"))
"""Libraries of networks."""
