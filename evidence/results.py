"""One way to start a script of evidence, to keep what was measured, and to publish a record and its page."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from convattn.data import ImageDataset, load_cifar10
from convattn.files import write_atomically
from convattn.provenance import describe_hardware, describe_versions, find_revision

ROOT = Path(__file__).parents[1]
"""The folder of the repository."""

EVIDENCE = ROOT / "evidence"
"""The folder of the questions."""

PAGES = ROOT / "docs" / "results"
"""The folder of the pages of results."""

BUSY = "Other programs ran at the same time: single times say little, ratios more."
_CIFAR10 = "CONVATTN_CIFAR10"


SHARED: dict[str, dict[str, Any]] = {
    "folder": {"type": Path, "help": "folder of what is measured on"},
    "--work": {"type": Path, "required": True, "help": "folder of what is measured; kept"},
    "--rounds": {"type": int, "default": 9, "help": "turns for each time"},
    "--busy": {"action": "store_true", "help": "say that other programs ran as well"},
}
"""Options that several scripts have."""


def new_parser(description: str | None, *shared: str) -> argparse.ArgumentParser:
    """Makes a parser whose help is the docstring of a script, as it is written, with some of the shared options."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in shared:
        parser.add_argument(option, **SHARED[option])
    return parser


def cifar10() -> ImageDataset:
    """Loads CIFAR-10 from the folder that the variable CONVATTN_CIFAR10 names."""
    return load_cifar10(os.environ.get(_CIFAR10))


def kept(file: Path, measure: Callable[[], Any]) -> Any:
    """Reads what was measured before, as JSON, or measures and writes it."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(measure(), indent=1) + "\n")
    return json.loads(file.read_text(encoding="utf-8"))


def environment(script: str, *packages: str) -> dict[str, Any]:
    """Describes how and where this process measures, as every record says it.

    Args:
        script: The script's `__file__`, in the folder of its question.
        packages: Distributions beside torch whose versions matter.

    Returns:
        The command, in which an absolute path is its last part alone; hardware, versions, and the code's revision.
    """
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    command = shlex.join(["python", "-m", f"evidence.{Path(script).parent.name}", *words])
    if _CIFAR10 in os.environ:
        command = f"{_CIFAR10}=FOLDER {command}"
    return {
        "command": command,
        "hardware": describe_hardware(torch.device("cpu")),
        "versions": describe_versions(("torch", *packages)),
        "revision": find_revision(),
    }


def versions_in_words(record: Mapping[str, Any]) -> str:
    """Lists the versions of a record."""
    return ", ".join(f"{name} {version}" for name, version in record["versions"].items())


def record_of(script: str) -> Path:
    """Returns the record of a question: it lies beside the script, and has the name of their folder."""
    folder = Path(script).parent
    return folder / f"{folder.name.replace('_', '-')}.json"


def publish(script: str, content: Mapping[str, Any]) -> None:
    """Writes the record of a question; ``python -m evidence.pages`` then writes its page."""
    write_atomically(record_of(script), json.dumps(content, indent=1) + "\n")
