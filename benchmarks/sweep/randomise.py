"""Networks as if they had been trained: nothing that is one, zero or tiny in a new one stays so."""

import math

import torch
from torch import Tensor, nn

__all__ = ["randomise"]

_SPREAD = 0.25


def randomise(network: nn.Module) -> None:
    """Draws anew what a new network holds as constants, from torch's seeded generator.

    Many networks start with branches whose last scale is zero or 1e-6, which hides every error inside of the branch.
    So the running statistics of norms are drawn (means normal with a standard deviation of 1/4, variances uniform in
    [0.5, 1.5]), the weights of norms (uniform in [0.5, 1.5]) and their biases (normal, 1/4), and of the other
    parameters those whose entries are all the same: scales and vectors other than zero uniform in [0.5, 1.5], biases
    normal with 1/4, and zero matrices and kernels normal with a standard deviation of 1/√(entries per output).

    Args:
        network: The network; it is changed.
    """
    with torch.no_grad():
        for module in network.modules():
            for name, tensor in module._buffers.items():
                if tensor is not None:
                    _statistic(name, tensor)
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.is_floating_point():
                    _parameter(module, name, parameter)


def _statistic(name: str, tensor: Tensor) -> None:
    """Draws a running statistic; other buffers stay."""
    if name in ("running_mean", "moving_mean"):
        tensor.normal_(0, _SPREAD)
    elif name in ("running_var", "moving_var"):
        tensor.uniform_(0.5, 1.5)


def _parameter(module: nn.Module, name: str, parameter: Tensor) -> None:
    """Draws the parameters of norms, and those that are constant."""
    norm = "Norm" in type(module).__name__ and parameter.numel() == max(parameter.shape, default=1)
    if not norm and not _constant(parameter):
        return
    vector = parameter.numel() == max(parameter.shape, default=1)
    if name.endswith(("bias", "beta")):
        parameter.normal_(0, _SPREAD)
    elif vector or parameter.any():
        parameter.uniform_(0.5, 1.5)
    else:
        parameter.normal_(0, 1 / math.sqrt(parameter.numel() / len(parameter)))


def _constant(parameter: Tensor) -> bool:
    return parameter.numel() > 0 and bool((parameter == parameter.flatten()[0]).all())
