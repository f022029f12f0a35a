"""Energy of a device over a run: hardware counters that may wrap around."""

import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

_POWERCAP, _FILES = Path("/sys/class/powercap"), ("energy_uj", "max_energy_range_uj")
_SECONDS_BETWEEN_READINGS = 60.0
"""A processor's counter starts again after minutes at the least: 2³² units of 2⁻¹⁶ J are 65,536 J, at 400 W 164 s."""


@dataclass(frozen=True)
class Counter:
    """One reading of an energy counter.

    Attributes:
        joules: Energy since some moment, in joules.
        range: Energy at which the counter wraps around to zero, in joules; None if it never does.
    """

    joules: float
    range: float | None = None


@final
class EnergyMeter:
    """Adds up the energy of a whole device.

    Counters are those of the hardware: NVML's for an NVIDIA accelerator (with the package nvidia-ml-py), the kernel's
    power capping counters of the packages for a processor, where they can be read. If a counter cannot be read once, or
    goes back without wrapping around, the sum is unknown from then on.
    """

    def __init__(self, device: torch.device) -> None:
        """Starts to count.

        Args:
            device: The device that computes.
        """
        self._device = device
        self._last = read_counters(device)
        self._joules: float | None = 0.0 if self._last else None
        self._read_at = time.monotonic()

    def watch(self) -> None:
        """Reads the counters if the last reading is a minute old. Call it often, so that no wrap-around is missed."""
        if time.monotonic() - self._read_at >= _SECONDS_BETWEEN_READINGS:
            self.read()

    def read(self) -> float | None:
        """Reads the counters.

        Returns:
            Energy since the meter was made, in joules; None where it is unknown.
        """
        if self._joules is None:
            return None
        now, self._read_at = read_counters(self._device), time.monotonic()
        spent = [_spent(self._last[name], now.get(name)) for name in self._last]
        known = [joules for joules in spent if joules is not None]
        self._joules = self._joules + sum(known) if len(known) == len(spent) else None
        self._last = now
        return self._joules


def read_counters(device: torch.device) -> dict[str, Counter]:
    """Reads the energy counters of a device.

    Args:
        device: The device.

    Returns:
        The counters by name; none where there are none, or one cannot be read.
    """
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
