"""`convattn info`: what is installed, and what it runs on."""

import re
from dataclasses import dataclass

from convattn.cli.output import print_record
from convattn.errors import install_hint
from convattn.record import Record

_PACKAGES = ("torch", "numpy", "einops", "jaxtyping", "safetensors")
_NAME = 26
"""Width of names."""

_OTHERS = {"all", "bench", "dev"}
"""Extras that repeat others, or serve work on convattn itself."""


@dataclass(frozen=True)
class Installation(Record):
    """What is installed, and what it runs on."""

    versions: dict[str, str]  # Versions of Python, convattn and the packages that it always needs
    hardware: dict[str, str]  # Device, processor, instruction set, cores, threads, accelerator
    optional: dict[str, str]  # Version of each optional package, or the line that installs it
    networks: dict[str, str]  # Task, accuracy and size of the trained networks of the package
    encodings: tuple[str, ...]  # Names of the encodings
    recipes: tuple[str, ...]  # Names of the recipes

    def summary(self) -> str:
        """Returns the installation as plain text, a group of lines for each kind of thing."""
        names = {"encodings": ", ".join(self.encodings), "recipes": ", ".join(self.recipes)}
        groups = {
            "Versions": self.versions,
            "Hardware": self.hardware,
            "Optional packages": self.optional,
            "Trained networks": self.networks,
            "Names": names,
        }
        lines = []
        for title, rows in groups.items():
            lines += ["", title]
            for name, text in rows.items():
                lines.append(f"  {name}".ljust(_NAME) + text)
        return "\n".join(lines[1:])


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

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    extras = _optional_packages()
    installed = describe_versions([*extras])
    optional = {}
    for name, extra in extras.items():
        optional[name] = installed.get(name, f"missing: {install_hint(extra)}")
    networks = {}
    for name in pretrained_names():
        networks[f"convattn:{name}"] = pretrained_card(name).summary()
    return Installation(
        versions={**describe_versions(_PACKAGES), "torch": torch.__version__},
        hardware=describe_hardware(device),
        optional=optional,
        networks=networks,
        encodings=tuple(ENCODINGS),
        recipes=tuple(recipe_names()),
    )


def _optional_packages() -> dict[str, str]:
    """Reads the optional packages, each with the smallest extra that brings it, from the metadata of this package."""
    from importlib import metadata

    extras: dict[str, list[str]] = {}
    for requirement in metadata.requires("convattn") or ():
        words = re.match(r"([\w.-]+).*extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if words and words[1] != "convattn" and words[2] not in _OTHERS:
            extras.setdefault(words[2], []).append(words[1])
    smallest: dict[str, str] = {}
    for extra in sorted(extras, key=lambda extra: len(extras[extra])):
        for name in extras[extra]:
            smallest.setdefault(name, extra)
    return smallest
