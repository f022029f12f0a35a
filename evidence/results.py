"""One way to start a script of evidence, and to publish what it found: a record beside it, and a page of the site."""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from convattn.data import ImageDataset, load_cifar10
from convattn.files import write_atomically
from convattn.provenance import describe_hardware, describe_versions, find_revision

__all__ = ["ROOT", "cifar10", "environment", "new_parser", "publish", "write_page"]

ROOT = Path(__file__).parents[1]
"""The folder of the repository."""


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Makes a parser whose help is the text of a script as it is.

    Args:
        description: The script's docstring.

    Returns:
        The parser, without arguments.
    """
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def cifar10() -> ImageDataset:
    """Loads CIFAR-10 from the folder that CONVATTN_CIFAR10 names."""
    return load_cifar10(os.environ.get("CONVATTN_CIFAR10"))


def environment(*packages: str) -> dict[str, Any]:
    """Describes where something was measured.

    Args:
        packages: Distributions beside torch whose versions matter.

    Returns:
        Processor and threads, versions, and the revision of the repository, as every record holds them.
    """
    return {
        "hardware": describe_hardware(torch.device("cpu")),
        "versions": describe_versions(("torch", *packages)),
        "revision": find_revision(),
    }


def publish(record: Path, content: Mapping[str, Any], page: str, text: str) -> None:
    """Writes a record and its page.

    Args:
        record: The file of the record.
        content: What it holds.
        page: Name of the page in docs/results, without its ending.
        text: The page, in Markdown.
    """
    write_atomically(record, json.dumps(content, indent=1) + "\n")
    write_page(page, text)


def write_page(page: str, text: str) -> None:
    """Writes a page of docs/results, named without its ending."""
    write_atomically(ROOT / "docs" / "results" / f"{page}.md", text)
