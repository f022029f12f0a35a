"""Time and energy of a run; the energy from hardware counters, which may wrap around."""

import importlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

import torch

_POWERCAP, _FILES = Path("/sys/class/powercap"), ("energy_uj", "max_energy_range_uj")
_SECONDS_BETWEEN_READINGS = 60.0
"""A processor's counter starts again after minutes at the least: 2³² units of 2⁻¹⁶ J are 65,536 J, at 400 W 164 s."""


@dataclass(frozen=True)
class Counter:
    """One reading of an energy counter."""

    joules: float  # Energy since some moment, in joules
    range: float | None = None  # Energy at which the counter wraps around to zero, in joules; None if it never does


@final
class EnergyMeter:
    """Adds up the energy of a whole device.

    Counters are those of the hardware: NVML's for an NVIDIA accelerator (with the package nvidia-ml-py), the kernel's
    power capping counters of the packages for a processor, where they can be read. If a counter cannot be read once, or
    goes back without wrapping around, the sum is unknown from then on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = read_counters(device)
        self._joules: float | None = 0.0 if self._last else None
        self._read_at = time.monotonic()

    def watch(self) -> None:
        """Reads the counters if the last reading is a minute old. Call it often, so that no wrap-around is missed."""
        if time.monotonic() - self._read_at >= _SECONDS_BETWEEN_READINGS:
            self.read()

    def read(self) -> float | None:
        """Returns the energy since the meter was made, in joules; None if it is unknown."""
        if self._joules is None:
            return None
        now, self._read_at = read_counters(self._device), time.monotonic()
        spent = [_spent(self._last[name], now.get(name)) for name in self._last]
        known = [joules for joules in spent if joules is not None]
        self._joules = self._joules + sum(known) if len(known) == len(spent) else None
        self._last = now
        return self._joules


def read_counters(device: torch.device) -> dict[str, Counter]:
    """Reads the energy counters of a device, by name; empty if there are none, or one cannot be read."""
    readers = {"cuda": _read_nvml, "cpu": _read_packages}
    return readers[device.type](device) if device.type in readers else {}


def _spent(before: Counter, now: Counter | None) -> float | None:
    """Returns the energy between two readings of a counter, with at most one wrap-around between them."""
    if now is None or (now.joules < before.joules and before.range is None):
        return None
    return now.joules - before.joules + (before.range or 0.0) * (now.joules < before.joules)


def _read_nvml(device: torch.device) -> dict[str, Counter]:
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        return {"device": Counter(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)}
    except pynvml.NVMLError:
        return {}


def _read_packages(_: torch.device) -> dict[str, Counter]:
    """Reads the counters of whole packages; those of their parts and of the platform would count twice."""
    try:
        return {
            folder.name: Counter(*(int((folder / file).read_text()) / 1e6 for file in _FILES))
            for folder in sorted(_POWERCAP.glob("intel-rapl:*"))
            if (folder / "name").read_text().startswith("package")
        }
    except (OSError, ValueError):
        return {}


@final
class Ledger:
    """Wall time and energy of a run.

    What was spent between the last checkpoint and an interruption is unknown and not counted.
    """

    def __init__(self, device: torch.device) -> None:
        self.started = datetime.now(UTC).isoformat(timespec="seconds")  # ISO 8601 in UTC
        self.resumed = 0  # Resumptions from a checkpoint
        self._began, self._meter = time.perf_counter(), EnergyMeter(device)
        self._earlier_seconds: float = 0.0
        self._earlier_joules: float | None = 0.0

    @property
    def seconds(self) -> float:
        """Wall time so far, in seconds."""
        return self._earlier_seconds + time.perf_counter() - self._began

    @property
    def energy(self) -> float | None:
        """Energy of the whole device so far, in joules; None if a part of it is unknown."""
        joules = self._meter.read()
        return None if joules is None or self._earlier_joules is None else self._earlier_joules + joules

    def watch(self) -> None:
        """Updates the energy; call it often."""
        self._meter.watch()

    def state_dict(self) -> dict[str, Any]:
        """Returns time, energy and number of resumptions."""
        counted = {"seconds": self.seconds, "joules": self.energy}
        return {**counted, "resumed": self.resumed, "started": self.started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self._earlier_seconds, self._earlier_joules = state["seconds"], state["joules"]
        self.resumed, self.started = state["resumed"] + 1, state["started"]
