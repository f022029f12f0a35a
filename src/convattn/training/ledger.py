"""Time and energy of a run so far, over all its resumptions."""

import time
from datetime import UTC, datetime
from typing import Any, final

import torch

from convattn.training.energy import EnergyMeter


@final
class Ledger:
    """Wall time and energy of a run.

    What was spent between the last checkpoint and an interruption is unknown and not counted.

    Attributes:
        started: When the run began, ISO 8601 in UTC.
        resumed: How often the run was resumed from a checkpoint.
    """

    def __init__(self, device: torch.device) -> None:
        """Starts to count.

        Args:
            device: The device that computes.
        """
        self.resumed, self.started = 0, datetime.now(UTC).isoformat(timespec="seconds")
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
