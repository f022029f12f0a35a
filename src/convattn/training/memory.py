"""Estimates the memory of a run before its first step, and measures what it took."""

import copy
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_STATES = {torch.optim.SGD: 1, torch.optim.AdamW: 2}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the device of each process, without what allocators and libraries add."""

    weights: int  # Parameters and buffers, and their moving average if there is one
    gradients: int  # Gradients
    optimizer: int  # Momenta
    activations: int  # What is kept for the backward pass, for the images of one portion
    images: int  # Both splits, as bytes

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.images

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {number / 2**20:,.0f}" for name, number in vars(self).items())
        return f"memory: about {self.total / 2**20:,.0f} MiB on each device ({parts})"


def estimate_memory(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    *,
    at_once: int,
    averaged: bool = False,
    data_bytes: int = 0,
) -> MemoryEstimate:
    """Estimates the memory of a training step with SGD or AdamW.

    Two small forward passes through a copy of the network, in training mode, count the bytes that are kept for the
    backward pass; they grow linearly with the number of images. `images` holds four or more normalised ones, and a
    process computes `at_once` of them together.

    Example:
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        >>> optimizer = torch.optim.SGD(network.parameters(), momentum=0.9)
        >>> estimate_memory(network, optimizer, torch.zeros(4, 4), at_once=10).activations
        480
    """
    parameters = sum(parameter.nbytes for parameter in network.parameters())
    weights = parameters + sum(buffer.nbytes for buffer in network.buffers())
    states = next((number for kind, number in _STATES.items() if isinstance(optimizer, kind)), 0)
    with torch.random.fork_rng(devices=[images.device] if images.device.type == "cuda" else []):
        trial = copy.deepcopy(network).train()
        two, four = (_saved_bytes(trial, images[:count].clone()) for count in (2, 4))
    return MemoryEstimate(
        weights=weights * (2 if averaged else 1),
        gradients=sum(parameter.nbytes for parameter in network.parameters() if parameter.requires_grad),
        optimizer=states * parameters,
        activations=two + (at_once - 2) * (four - two) // 2,
        images=data_bytes,
    )


def peak_memory(device: torch.device) -> int:
    """Returns the largest memory so far, in bytes: of the device where it is CUDA, or else of the process.

    On Linux it is the kernel's VmHWM: ru_maxrss is inherited, and may be that of the program which started this one.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE) if status.exists() else None
    if peak is not None:
        return int(peak[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _saved_bytes(network: nn.Module, images: Tensor) -> int:
    """Adds up the storages that a forward pass keeps for the backward pass, parameters left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in (*network.parameters(), *network.buffers())}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = network(images)
    size = sum(storage.nbytes() for storage in kept.values())
    del output
    return size
