"""Running the suite "networks": case after case, then what it was run on, and files that are whole or not there."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from convattn.benchmark.build import Setting
from convattn.benchmark.cases import NetworkCase
from convattn.benchmark.measure import plain_float32
from convattn.benchmark.network_case import run_network_case
from convattn.benchmark.network_page import networks_page
from convattn.benchmark.network_record import NetworkResult, NetworksRecord
from convattn.files import write_atomically
from convattn.grid import whole_number
from convattn.provenance import describe_hardware, describe_versions, find_revision

__all__ = ["run_networks", "write_networks"]

_PACKAGES = ("torch", "numpy", "timm")

_NOT_COVERED = (
    "other networks, sizes, processors and accelerators, numbers of threads, dtypes and versions than those above",
    "trained weights, and soft heads: all heads here are so sharp that each looks at one pixel, as a convolution",
    "training, torch.compile, exported networks, images in other memory formats",
    "time and memory of the conversion itself, and of freezing",
)


def run_networks(
    cases: Sequence[NetworkCase],
    setting: Setting,
    *,
    rounds: int,
    quick: bool = False,
    command: str = "",
    listener: Callable[[NetworkCase, tuple[NetworkResult, ...]], None] | None = None,
) -> NetworksRecord:
    """Runs cases of the suite "networks".

    Args:
        cases: The cases, in the order in which they are to run.
        setting: Device and dtype.
        rounds: Number of rounds, ≥ 1; of single images twenty times as many.
        quick: Whether the cases are those of tiny networks, for the record.
        command: Command that repeats the run, for the record.
        listener: Called after each case with what was found.

    Returns:
        The record.

    Raises:
        ArgumentError: `rounds` is no integer of at least 1.
        MissingDependencyError: timm is not installed.
    """
    whole_number("rounds", rounds)
    started, began = datetime.now(UTC), time.perf_counter()
    results: list[NetworkResult] = []
    with plain_float32():
        for case in cases:
            found = run_network_case(case, setting, rounds)
            results += found
            if listener is not None:
                listener(case, found)
    return NetworksRecord(
        quick=quick,
        device=setting.device,
        dtype=setting.dtype,
        rounds=rounds,
        results=tuple(results),
        command=command,
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - began,
        hardware=describe_hardware(setting.torch_device),
        versions=describe_versions(_PACKAGES),
        revision=find_revision(),
        passed=all(result.passed for result in results),
        not_covered=_NOT_COVERED,
    )


def write_networks(record: NetworksRecord, folder: Path) -> None:
    """Writes networks-speed.json and networks-speed.md.

    Args:
        record: What was found.
        folder: An empty folder.
    """
    record.save(folder / "networks-speed.json")
    write_atomically(folder / "networks-speed.md", networks_page(record))
