"""Where a result comes from: hardware, instruction set, versions and code revision."""

import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import torch

from convattn.__about__ import __version__
from convattn.record import Record

_PACKAGES = ("torch", "accelerate", "numpy")

_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Variables that keep oneDNN, under its new name and its old one, and MKL to a smaller set than the processor has."""


def describe_hardware(device: torch.device) -> dict[str, str]:
    """Returns device, processor, instruction set, cores, threads and system in words; with CUDA the accelerator too."""
    described = {
        "device": str(device.type),
        "processor": _processor(),
        "instructions": describe_instructions(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "system": platform.platform(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        described["accelerator"] = properties.name
        described["accelerator_memory"] = f"{properties.total_memory / 2**30:.1f} GiB"
    return described


def describe_instructions() -> str:
    """Returns torch's instruction set, AMX where there is that too, and the variables that limit other libraries.

    Example:
        >>> describe_instructions().split()[0] == torch.backends.cpu.get_cpu_capability()
        True
    """
    instructions = torch.backends.cpu.get_cpu_capability()
    if "amx_tile" in _processor("flags").split():
        instructions += " and AMX"
    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    return f"{instructions} ({', '.join(limits)})" if limits else instructions


def describe_versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Returns the versions of convattn, of Python and of those of the packages that are installed."""
    versions = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {"convattn": __version__, "python": platform.python_version(), **versions}


def find_revision(folder: Path = Path(__file__).parent) -> str | None:
    """Returns the commit of the git checkout that tracks a folder, with "-dirty" if files were changed.

    Returns None without git or where no checkout tracks the folder; by default it is this package's.
    """
    if not _git(folder, "ls-files", "."):
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns what a git command prints, or None where it fails."""
    try:
        command = ["git", "-C", folder, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None


def _processor(line_of: str = "model name") -> str:
    """Names the processor, or returns another line about it; Linux keeps them in a file only."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith(line_of):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@dataclass(frozen=True)
class DataRecord(Record):
    """Which data a run saw."""

    name: str  # Data set and, in brackets, its copy
    source: str  # Where it was read from, without private paths
    hashes: dict[str, str]  # SHA-256 of each file or array, by its name
    counts: dict[str, int]  # Number of images by split
    split: str  # How the splits were made


@dataclass(frozen=True)
class RunRecord(Record):
    """Everything that is needed to read, repeat and check a training run.

    Example:
        >>> from convattn import load_recipe, train
        >>> small = {"model.width": "8", "model.depth": "1", "model.heads": "4", "model.ffn": "8", "model.patch": "1"}
        >>> record = train(load_recipe("digits-quadratic", overrides={**small, "training.epochs": "1"}), progress=False)
        >>> record.data.counts["test"], 0 < record.accuracy < 1
        (360, True)
    """

    schema_version: ClassVar[int] = 2

    name: str  # Name of the recipe
    claim: str  # What the recipe says it shows
    command: str  # Command that repeats the run
    recipe: dict[str, Any]  # The recipe as resolved, overrides included
    seed: int  # Seed of all random numbers
    data: DataRecord  # Which data the run saw
    parameters: int  # Number of trainable parameters
    # Final numbers of "test_…", or "validation_…" of held-out images; accuracies in [0, 1]
    results: dict[str, float]
    seconds: float  # Wall time of training and evaluation
    peak_memory: int  # Of the process (CPU) or of the device (GPU), in bytes
    resumed: int  # How often the run was resumed from a checkpoint
    hardware: dict[str, str]  # Processor or accelerator, cores, memory
    versions: dict[str, str]  # Versions of Python and of the packages that computed
    started: str  # Start, ISO 8601 in UTC
    revision: str | None  # Code revision (git), or None outside a checkout
    not_covered: tuple[str, ...] = field(default=())  # What the run says nothing about

    @property
    def measured(self) -> str:
        """Which images were measured: "test", or "validation" for held-out training images."""
        return "validation" if "validation_accuracy" in self.results else "test"

    @property
    def accuracy(self) -> float:
        """Share of the measured images classified correctly after the last epoch, in [0, 1]."""
        return self.results[f"{self.measured}_accuracy"]

    def summary(self) -> str:
        """Returns the accuracy, the data, the time and the command as a few lines of plain text."""
        scale = ""
        if self.recipe["scale"] != "paper":
            scale = f" at scale {self.recipe['scale']}"
        counts = ", ".join(f"{number} {split}" for split, number in self.data.counts.items())
        rows = {f"{self.measured} accuracy": f"{self.accuracy:.2%}"}
        if "views_accuracy" in self.results:
            views = self.recipe["training"]["test_views"]
            rows["with views"] = f"{self.results['views_accuracy']:.2%} ({views})"
        rows |= {
            "parameters": f"{self.parameters:,}",
            "images": f"{self.data.name}: {counts}",
            "time": f"{self.seconds:.1f} s on {self.hardware['processor']}, threads: {self.hardware['threads']}",
            "repeat with": self.command,
        }
        lines = [f"  {name:<15} {value}" for name, value in rows.items()]
        return "\n".join([f"{self.name}{scale}, seed {self.seed}", *lines])
