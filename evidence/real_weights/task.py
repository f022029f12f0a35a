"""What is measured: networks from packages, and the task that they do together."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from convattn.errors import ConvAttnError

Network = Callable[[Tensor], Any]


class MissingPackageError(ConvAttnError, ImportError):
    """A package that holds weights or a photograph is not installed."""


@dataclass(frozen=True)
class Package:
    """A package that is needed beside those of the environment.

    Attributes:
        name: Its name for pip.
        module: Its name in Python.
        licence: Its licence, which covers what is taken from it.
    """

    name: str
    module: str
    licence: str

    def folder(self) -> Path:
        """Finds the package's files; nothing of it is run.

        Raises:
            MissingPackageError: It is not installed.
        """
        spec = find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise MissingPackageError(
                f"{self.name} is not installed; run: pip install --no-deps {self.name}"
            )
        return Path(spec.submodule_search_locations[0])

    def only(self, module: str, **names: object) -> ModuleType:
        """Imports one module of the package without the package's own `__init__`, which may need much more.

        Args:
            module: The module's name within the package.
            **names: What the module looks up in the package.

        Returns:
            The module.
        """
        stand_in = ModuleType(self.module)
        stand_in.__path__ = [str(self.folder())]
        stand_in.__dict__.update(names)
        with patch.dict(sys.modules, {self.module: stand_in}):
            return import_module(f"{self.module}.{module}")


@dataclass(frozen=True)
class Found:
    """What a task finds.

    Attributes:
        numbers: Outputs by name, in the dtype that computed.
        decisions: Lists of what was decided by thresholds or largest values, by name.
        words: The same in a sentence.
    """

    numbers: dict[str, Tensor]
    decisions: dict[str, list[Any]] = field(default_factory=dict)
    words: str = ""


@dataclass(frozen=True)
class Task:
    """Networks, and what is done with them.

    Attributes:
        networks: The networks by name, in float32 and evaluation mode; each takes one tensor.
        given: What the task is done on, in float32.
        find: Does the task with networks of these names, in the dtype of what it is given.
        own: The programs that the package runs itself, where the networks were built anew from its files.
        largest_softmax: Bytes that the softmax of a layer may take, over all heads, queries and keys of its axes.
            Layers with more stay convolutions where the others take a softmax.
    """

    networks: dict[str, nn.Module]
    given: Tensor
    find: Callable[[Mapping[str, Network], Tensor], Found]
    own: Mapping[str, Network] | None = None
    largest_softmax: int = 2**27


@dataclass(frozen=True)
class Subject:
    """A task that can be built where its packages are installed.

    Attributes:
        name: Its name on the command line.
        title: Its title on the page.
        about: What is done, and on what, in a few sentences.
        packages: Packages needed; the first one holds the weights.
        build: Builds the task.
    """

    name: str
    title: str
    about: str
    packages: tuple[Package, ...]
    build: Callable[[], Task]

    def missing(self) -> str:
        """Says which packages are not installed; empty where all are."""
        reasons = []
        for package in self.packages:
            try:
                package.folder()
            except MissingPackageError as error:
                reasons.append(str(error))
        return "; ".join(reasons)
