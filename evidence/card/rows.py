"""The rows of a stage: a file that is replaced whole after each row, a limit in seconds, and errors as rows."""

import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from convattn.files import write_atomically
from convattn.provenance import describe_hardware
from evidence.results import environment

_LONGEST = 400
"""Characters of an error that are kept; of its traceback, the last three times as many."""


@dataclass
class Stage:
    """Where a stage computes, how long, and what it has found so far.

    Attributes:
        name: Name of the stage.
        device: Where it computes.
        folder: Where its file, `name`.json, is written.
        seconds: Time from now after which no other case begins.
        tiny: Whether sizes are so small that numbers say nothing.
        clock: Tells the seconds.
        rows: What was found, a row for each case.
    """

    name: str
    device: torch.device
    folder: Path
    seconds: float
    tiny: bool = False
    clock: Callable[[], float] = time.monotonic
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Starts the clock, and writes the file without rows."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._began = self.clock()
        self._head = described(self)
        self._write()

    @property
    def on_cuda(self) -> bool:
        """Whether it computes on a CUDA device."""
        return self.device.type == "cuda"

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - (self.clock() - self._began)

    def add(self, **row: Any) -> None:
        """Adds a row, and writes the file anew."""
        at = round(self.clock() - self._began, 2)
        self.rows.append({**row, "at": at})
        self._write()
        words = [f"{name}={_short(value)}" for name, value in row.items() if name != "traceback"]
        print(f"{at:7.2f}", *words, flush=True)

    def case(self, case: str, measure: Callable[[], Mapping[str, Any]], **setting: Any) -> bool:
        """Measures a case unless the time is over; an error becomes a row.

        Args:
            case: Name of the case.
            measure: Returns the cells that it finds.
            **setting: Cells that are known before.

        Returns:
            Whether it was measured without an error.

        Raises:
            RuntimeError: The CUDA device is no longer usable in this process.
        """
        if self.left <= 0:
            self.add(case=case, **setting, skipped="no time left")
            return False
        try:
            self.add(case=case, **setting, **measure())
        except Exception as error:  # whatever a case meets is what it found
            text = f"{type(error).__name__}: {error}"[:_LONGEST]
            trace = traceback.format_exc()[-3 * _LONGEST :]
            self.add(case=case, **setting, error=text, traceback=trace)
            if "CUDA error" in text:
                raise
            return False
        return True

    def _write(self) -> None:
        content = {**self._head, "rows": self.rows}
        write_atomically(self.folder / f"{self.name}.json", json.dumps(content, indent=1) + "\n")


def described(stage: Stage) -> dict[str, Any]:
    """Describes how and where a stage computes."""
    packages = ("torch", "triton", "numpy", "timm", "accelerate")
    content = {
        **environment(__file__, *packages),
        "stage": stage.name,
        "tiny": stage.tiny,
        "seconds": stage.seconds,
        "hardware": describe_hardware(stage.device),
    }
    if stage.on_cuda:
        content["versions"]["CUDA"] = torch.version.cuda
        content["versions"]["cuDNN"] = torch.backends.cudnn.version()
    return content


def _short(value: object) -> str:
    """Words a cell for the terminal."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def use_tf32(on: bool) -> None:
    """Lets CUDA compute products and convolutions of float32 in TensorFloat-32, or not."""
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on
