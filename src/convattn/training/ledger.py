"""What a run has cost so far, over all the times that it was taken up."""

import importlib
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

import torch

__all__ = ["Ledger"]

_COUNTERS = Path("/sys/class/powercap")
_PACKAGES = "intel-rapl:[0-9]*"


@final
class Ledger:
    """Wall time and energy of a run.

    Energy is that of the whole device, by its own counter: NVML's for an NVIDIA accelerator (with the package
    nvidia-ml-py), the kernel's power capping counters for a processor where they can be read; None where there is none.

    Attributes:
        started: When the run began first, ISO 8601 in UTC.
        resumed: How often the run was taken up from a checkpoint.
    """

    def __init__(self, device: torch.device) -> None:
        """Starts to count.

        Args:
            device: The device that computes.
        """
        self._device, self.resumed = device, 0
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self._began, self._joules = time.perf_counter(), _read_joules(device)
        self._earlier_seconds, self._earlier_joules = 0.0, 0.0

    @property
    def seconds(self) -> float:
        """Wall time so far, in seconds."""
        return self._earlier_seconds + time.perf_counter() - self._began

    @property
    def energy(self) -> float | None:
        """Energy so far, in joules; None where the device does not report it."""
        now = _read_joules(self._device)
        if now is None or self._joules is None or now < self._joules:
            return None
        return self._earlier_joules + now - self._joules

    def state_dict(self) -> dict[str, Any]:
        """Returns what has been counted."""
        counted = {"seconds": self.seconds, "joules": self.energy or 0.0}
        return {**counted, "resumed": self.resumed, "started": self.started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Counts on from `state_dict`."""
        self._earlier_seconds, self._earlier_joules = state["seconds"], state["joules"]
        self.resumed, self.started = state["resumed"] + 1, state["started"]


def _read_joules(device: torch.device) -> float | None:
    """Reads the device's energy counter."""
    return _read_nvml(device) if device.type == "cuda" else _read_processor()


def _read_nvml(device: torch.device) -> float | None:
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
    except pynvml.NVMLError:
        return None


def _read_processor() -> float | None:
    try:
        files = [folder / "energy_uj" for folder in _COUNTERS.glob(_PACKAGES) if folder.name.count(":") == 1]
        return sum(int(file.read_text()) for file in files) / 1e6 if files else None
    except (OSError, ValueError):
        return None
