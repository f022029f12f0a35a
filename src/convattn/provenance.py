"""Where a result comes from: hardware, instruction set, versions and code revision."""

import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch

from convattn.__about__ import __version__

__all__ = ["describe_hardware", "describe_instructions", "describe_versions", "find_revision", "portable_path"]

_PACKAGES = ("torch", "accelerate", "numpy")

_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Variables that keep oneDNN, under its new name and its old one, and MKL to a smaller set than the processor has."""


def describe_hardware(device: torch.device) -> dict[str, str]:
    """Describes the machine and the device that computes.

    Args:
        device: The device.

    Returns:
        Device, processor, instruction set, cores, threads and system, in words; with CUDA the accelerator and its
        memory as well.
    """
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
    """Names torch's instruction set, and variables that limit other libraries to a smaller one.

    Returns:
        For instance "AVX512" or "AVX2 (ONEDNN_MAX_CPU_ISA=AVX2)".

    Example:
        >>> describe_instructions().split()[0] == torch.backends.cpu.get_cpu_capability()
        True
    """
    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    return torch.backends.cpu.get_cpu_capability() + (f" ({', '.join(limits)})" if limits else "")


def describe_versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Returns versions.

    Args:
        packages: Names of packages; by default those that compute in training.

    Returns:
        The versions of convattn, of Python and of those packages that are installed.
    """
    versions = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {"convattn": __version__, "python": platform.python_version(), **versions}


def find_revision(folder: Path = Path(__file__).parent) -> str | None:
    """Returns the revision of the git checkout that tracks a folder, with "-dirty" if files were changed.

    Args:
        folder: Folder of source files; by default this package's.

    Returns:
        The commit's hash; None without git or where no checkout tracks the folder.
    """
    if not _git(folder, "ls-files", "."):
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def portable_path(path: Path) -> str:
    """Returns a path as a recorded command names it: of an absolute one the name alone.

    Example:
        >>> portable_path(Path("docs/results")), portable_path(Path("/home/somebody/results"))
        ('docs/results', 'results')
    """
    return path.name if path.is_absolute() else path.as_posix()


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns what a git command prints, or None where it fails."""
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    """Names the processor; Linux keeps the full name in a file only."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
