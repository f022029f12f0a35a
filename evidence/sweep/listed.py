"""Homes whose networks are listed in a file of JSON: what builds each one, and what it is run on, by name.

A row is `{"network": "module:Class", "options": {…}, "arguments": […], "folder": "repository"}`:

- `network` is built with the options. An option that is such an object itself is built first; without its own options
  it is what the name stands for, as a class.
- `arguments` are a list, or an object of named ones. A list of sizes is a standard normal tensor,
  `{"uniform": [1, 3, 64, 64]}` is one in [0, 1), `{"below": 10, "sizes": [1, 7]}` are random whole numbers from 0 to
  9, and all else is given as it is.
- `folder` is the repository, in the folder of code, from which the network is imported; by default it is that folder.
- `model` and `remark` are what the record calls it and says of it.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from convattn.provenance import find_revision
from evidence.sweep.subjects import Built, Home, Subject

WAYS = ("auto", "back", "step")


def listed(name: str, file: Path, ways: Sequence[str] = WAYS, code: Path | None = None) -> Home:
    """Makes a home of a list.

    Args:
        name: The home's name.
        file: The list.
        ways: How its networks are converted, as in `Home`.
        code: Folder of repositories from which networks are imported; None means installed packages only.

    Returns:
        The home.
    """
    rows: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))

    def subject(family: str) -> Subject:
        row = rows[family]
        remark = row.get("remark", "")
        if code is not None:
            folder = code / row.get("folder", "")
            sys.path.insert(0, str(folder))
            remark = f"code at revision {find_revision(folder) or 'unknown'}"
        return Subject(row.get("model", family), partial(_build, row), remark)

    packages = {re.split(r"\W", row["network"])[0] for row in rows.values()}
    return Home(name, tuple(sorted(packages)), partial(list, rows), subject, tuple(ways))


def _build(row: Mapping[str, Any]) -> Built:
    """Builds a network, and draws what it is run on."""
    network = _made({"options": {}, **row})
    generator = torch.Generator().manual_seed(0)
    arguments = row["arguments"]
    if isinstance(arguments, Mapping):
        return Built(network, {key: _drawn(item, generator) for key, item in arguments.items()})
    return Built(network, tuple(_drawn(item, generator) for item in arguments))


def _made(option: Any) -> Any:
    """Builds what an option describes."""
    if isinstance(option, Mapping) and "tuple" in option:
        return tuple(option["tuple"])
    if not isinstance(option, Mapping) or "network" not in option:
        return option
    place, _, name = option["network"].partition(":")
    # torchaudio refuses a torch of another CUDA than its own, though nothing here runs on one
    with patch.object(torch.version, "cuda", None):
        builder = attrgetter(name)(import_module(place))
    if "options" not in option:
        return builder
    return builder(**{key: _made(item) for key, item in option["options"].items()})


def _drawn(item: Any, generator: torch.Generator) -> Any:
    """Draws an argument of a network."""
    if isinstance(item, list):
        return torch.randn(item, generator=generator)
    if isinstance(item, Mapping) and "uniform" in item:
        return torch.rand(item["uniform"], generator=generator)
    if isinstance(item, Mapping):
        return torch.randint(item["below"], item["sizes"], generator=generator)
    return item
