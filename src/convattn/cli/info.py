"""`convattn info`: what is installed, and what it runs on."""

import os
import re
import textwrap
from dataclasses import dataclass
from functools import partial

from convattn.cli.output import print_record
from convattn.errors import install_hint
from convattn.record import Record

_PACKAGES = ("torch", "numpy", "einops", "jaxtyping", "safetensors")
_COLUMNS = 120
_OTHERS = {"all", "bench", "dev"}
"""Extras that repeat others, or serve work on convattn itself."""


@dataclass(frozen=True)
class Installation(Record):
    """What is installed, and what it runs on."""

    versions: dict[str, str]  # Versions of Python, convattn and the packages that it always needs
    hardware: dict[
        str, str
    ]  # Device, processor, instruction set, cores, threads and, with CUDA, accelerator
    memory: int  # Memory of the machine, in bytes
    encodings: tuple[str, ...]  # Names of the encodings
    recipes: tuple[str, ...]  # Names of the recipes
    networks: dict[
        str, str
    ]  # Task, accuracy and size of each trained network that comes with the package
    optional: dict[str, str]  # Version of each optional package that is installed
    missing: dict[str, str]  # For each optional package that is not, the line that installs it

    def summary(self) -> str:
        """Returns the installation as plain text, a group of lines for each kind of thing."""
        groups = {
            "Versions": self.versions,
            "Hardware": {**self.hardware, "memory": f"{self.memory / 2**30:.1f} GiB"},
            "Optional packages": {
                **self.optional,
                **{name: f"missing: {line}" for name, line in self.missing.items()},
            },
            "Trained networks": {f"convattn:{name}": text for name, text in self.networks.items()},
            "Names": {"encodings": ", ".join(self.encodings), "recipes": ", ".join(self.recipes)},
        }
        width = max(len(name) for rows in groups.values() for name in rows) + 4
        wrap = partial(
            textwrap.fill, width=_COLUMNS, subsequent_indent=" " * width, break_on_hyphens=False
        )
        paragraphs = []
        for title, rows in groups.items():
            names = [f"  {name.replace('_', ' ')}".ljust(width) for name in rows]
            lines = [
                wrap(value, initial_indent=name)
                for name, value in zip(names, rows.values(), strict=True)
            ]
            paragraphs.append("\n".join([title, *lines]))
        return "\n\n".join(paragraphs)


def info(*, json: bool = False) -> int:
    """Print versions, hardware, trained networks, names of encodings and recipes, and missing packages.

    Args:
        json: Print it as JSON.

    Returns:
        0.
    """
    installation = describe_installation()
    print_record(installation, installation.summary(), json=json)
    return 0


def describe_installation() -> Installation:
    """Describes the machine and the installed packages."""
    import torch

    from convattn.encodings import ENCODINGS
    from convattn.lab import recipe_names
    from convattn.networks.pretrained import pretrained_card, pretrained_names
    from convattn.provenance import describe_hardware, describe_versions

    extras = _optional_packages()
    installed = {
        name: text for name, text in describe_versions([*extras]).items() if name in extras
    }
    return Installation(
        versions={**describe_versions(_PACKAGES), "torch": torch.__version__},
        hardware=describe_hardware(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        encodings=tuple(ENCODINGS),
        recipes=tuple(recipe_names()),
        networks={name: pretrained_card(name).summary() for name in pretrained_names()},
        optional=installed,
        missing={
            name: install_hint(extra) for name, extra in extras.items() if name not in installed
        },
    )


def _optional_packages() -> dict[str, str]:
    """Reads the optional packages, each with the smallest extra that brings it, from the metadata of this package."""
    from importlib import metadata

    extras: dict[str, list[str]] = {}
    for requirement in metadata.requires("convattn") or ():
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if name and extra and name[0] != "convattn" and extra[1] not in _OTHERS:
            extras.setdefault(extra[1], []).append(name[0])
    found: dict[str, str] = {}
    for extra, names in sorted(extras.items(), key=lambda item: len(item[1])):
        for name in names:
            found.setdefault(name, extra)
    return found
