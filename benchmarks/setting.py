"""Device and dtype of a benchmark, and random numbers that do not disturb those outside."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from convattn.errors import ArgumentError, DeviceError, UnknownNameError, must_be

DTYPES = ("bfloat16", "float32", "float64")
"""Dtypes that can be measured."""

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Setting:
    """Device and dtype of a benchmark.

    Attributes:
        device: "cpu", "cuda" or "cuda:N".
        dtype: One of `DTYPES`.
    """

    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Checks the names.

        Raises:
            UnknownNameError: The dtype is not one of `DTYPES`.
            ArgumentError: The device is not the CPU or a CUDA device.
            DeviceError: There is no such CUDA device.
        """
        if self.dtype not in DTYPES:
            raise UnknownNameError("dtype", self.dtype, DTYPES)
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = None
        if device is None or device.type not in {"cpu", "cuda"}:
            raise ArgumentError(must_be("device", "cpu, cuda or cuda:N", self.device))
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise DeviceError(
                f"device {self.device!r} is not there: CUDA has {torch.cuda.device_count()} here"
            )

    @property
    def torch_device(self) -> torch.device:
        """The device."""
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype."""
        return getattr(torch, self.dtype)

    def place(self, module: M, *, training: bool = False) -> M:
        """Moves a module to the device and dtype, in training or inference mode, and returns it."""
        return module.to(device=self.torch_device, dtype=self.torch_dtype).train(training)

    def draw(self, shape: tuple[int, ...], seed: int) -> Tensor:
        """Draws standard normal numbers, the same on every device."""
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return drawn.to(device=self.torch_device, dtype=self.torch_dtype)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws from a seed inside the block; the random numbers outside go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
