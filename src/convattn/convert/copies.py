"""Copies of modules to run and change, and torch's random state left as it was."""

import copy
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from convattn.errors import UnsupportedModelError


def copy_module(module: nn.Module) -> nn.Module:
    """Copies a module, even if hooks left tensors in it that belong to an autograd graph."""
    results = [tensor for part in module.modules() for tensor in vars(part).values() if isinstance(tensor, Tensor)]
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in results if not tensor.is_leaf}
    return copy.deepcopy(module, memo)


def copy_network(model: nn.Module) -> nn.Module:
    """Copies any network; the copy shares nothing with it. What cannot be copied raises UnsupportedModelError."""
    try:
        return copy_module(model)
    except Exception as error:  # a foreign module may fail in any way
        raise UnsupportedModelError(f"cannot copy {type(model).__name__}: {error}") from error


def keep_random_state(network: nn.Module) -> AbstractContextManager[None]:
    """Restores torch's random state on leaving, on the CPU and on the network's devices."""
    devices = {parameter.device.index or 0 for parameter in network.parameters() if parameter.is_cuda}
    return torch.random.fork_rng(devices=sorted(devices))
