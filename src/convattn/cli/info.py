"""`convattn info`: what is installed, and what it runs on."""

from dataclasses import dataclass

from convattn.cli.output import print_record
from convattn.record import Record

_PACKAGES = (
    "torch",
    "numpy",
    "einops",
    "jaxtyping",
    "safetensors",
    "accelerate",
    "timm",
    "torchvision",
    "transformers",
    "onnxruntime",
    "openvino",
)
"""Packages whose versions matter in a report of a fault."""

_NAME = 26
"""Width of names."""


@dataclass(frozen=True)
class Installation(Record):
    """What is installed, and what it runs on."""

    versions: dict[str, str]  # Versions of Python, convattn and the packages that it computes with
    hardware: dict[str, str]  # Device, processor, instruction set, cores, threads, accelerator
    networks: dict[str, str]  # Task, accuracy and size of the trained networks of the package
    encodings: tuple[str, ...]  # Names of the encodings
    recipes: tuple[str, ...]  # Names of the recipes

    def summary(self) -> str:
        """Returns the installation as plain text, a group of lines for each kind of thing."""
        names = {"encodings": ", ".join(self.encodings), "recipes": ", ".join(self.recipes)}
        groups = {
            "Versions": self.versions,
            "Hardware": self.hardware,
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
    """Print versions, hardware, trained networks, and names of encodings and recipes.

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
    return Installation(
        versions={**describe_versions(_PACKAGES), "torch": torch.__version__},
        hardware=describe_hardware(device),
        networks={
            f"convattn:{name}": pretrained_card(name).summary() for name in pretrained_names()
        },
        encodings=tuple(ENCODINGS),
        recipes=tuple(recipe_names()),
    )
