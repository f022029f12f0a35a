"""One way to start a script of evidence, to keep what was measured, and to publish a record and its page."""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from convattn.data import ImageDataset, load_cifar10
from convattn.files import write_atomically
from convattn.provenance import describe_hardware, describe_versions, find_revision, portable_path

ROOT = Path(__file__).parents[1]
"""The folder of the repository."""

PAGES = ROOT / "docs" / "results"
"""The folder of the pages of results."""

BUSY = "Other programs ran at the same time: single times say little, ratios more."
_CIFAR10 = "CONVATTN_CIFAR10"


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Makes a parser whose help is the docstring of a script, as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_timing(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a script that times by turns."""
    parser.add_argument("--rounds", type=int, default=9, help="turns for each time")
    parser.add_argument("--busy", action="store_true", help="say that other programs ran as well")


def add_work(parser: argparse.ArgumentParser) -> None:
    """Adds the folder of a script that goes on where it was stopped."""
    parser.add_argument(
        "-w", "--work", type=Path, required=True, help="folder of what is measured; kept"
    )


def cifar10() -> ImageDataset:
    """Loads CIFAR-10 from the folder that the variable CONVATTN_CIFAR10 names."""
    return load_cifar10(os.environ.get(_CIFAR10))


def clocked(call: Callable[..., object], *arguments: object) -> float:
    """Returns the seconds that a call takes."""
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def kept(file: Path, measure: Callable[[], Any]) -> Any:
    """Reads what was measured before, as JSON, or measures and writes it."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(measure(), indent=1) + "\n")
    return json.loads(file.read_text(encoding="utf-8"))


def environment(module: str, *packages: str) -> dict[str, Any]:
    """Describes how and where this process measures, as every record says it.

    Args:
        module: The script, as ``python -m`` takes it.
        packages: Distributions beside torch whose versions matter.

    Returns:
        The command, in which an absolute path is its last part alone; hardware, versions, and the code's revision.
    """
    words = [portable_path(Path(word)) if word.startswith("/") else word for word in sys.argv[1:]]
    command = shlex.join(["python", "-m", module, *words])
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


def publish(record: Path, content: Mapping[str, Any]) -> None:
    """Writes a record; ``python -m evidence.pages`` then writes its page."""
    write_atomically(record, json.dumps(content, indent=1) + "\n")
