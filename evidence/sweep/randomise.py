"""Networks as if they had been trained: nothing that is one, zero or tiny in a new one stays so."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from evidence.sweep.subjects import Built, run

HOW = """\
Weights are those of a new network, seed 0; what would hide an error is drawn anew: weights of norms uniform in \
[0.5, 1.5], their biases normal with a standard deviation of 1/4; of the other parameters those constant in a new \
network, vectors uniform in [0.5, 1.5], biases normal with 1/4 of what their layer gives for white input, scales of \
residual branches (0 or 10⁻⁶ in many) uniform in [0.1, 0.3], as larger ones make deep networks magnify rounding, zero \
matrices and kernels normal with a variance of one over the entries per output. Running statistics are those of the \
network's own input, the mean moved by a normal number with 1/4 of the standard deviation, the variance times a \
uniform number in [0.5, 1.5]. The input is standard normal, or what the home takes."""
"""What the networks are, in words for the page."""

_SPREAD = 0.25

_TINY = 0.1
"""Constant below which a scale is that of a residual branch."""

_LEAST = 0.01
"""Share of the variance of all channels below which no channel's variance is set."""


def randomise(built: Built) -> None:
    """Draws anew what a new network holds as constants, from torch's seeded generator; sets evaluation mode.

    Many networks start with branches whose last scale is zero or 1e-6, which hides every error inside of the branch.
    So the weights of norms are drawn (uniform in [0.5, 1.5]) with their biases (normal with a standard deviation of
    1/4), and of the other parameters those whose entries are all the same: vectors uniform in [0.5, 1.5], biases
    normal with 1/4 of what their layer gives for white input, and zero matrices and kernels normal with a standard
    deviation of 1/√(entries per output). Scales that are zero or tiny, of residual branches, are uniform in
    [0.1, 0.3]: larger ones make a deep network magnify rounding until its results prove nothing.

    Running statistics are those of the network's own input, mean moved by a normal number with 1/4 of the standard
    deviation, variance times a uniform number in [0.5, 1.5]. Drawn without regard to what comes in, they let the
    signal of a deep network die out, and its result would not depend on most of its layers.

    Args:
        built: The network, which is changed, and its arguments.
    """
    built.network.eval()
    with torch.no_grad():
        for module in built.network.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.is_floating_point() and parameter.numel():
                    _draw(module, name, parameter)
    handles = [
        module.register_forward_pre_hook(_calibrate)
        for module in built.network.modules()
        if isinstance(getattr(module, "running_mean", None), Tensor)
    ]
    if handles:
        run(built)
    for handle in handles:
        handle.remove()


def _draw(module: nn.Module, name: str, parameter: Tensor) -> None:
    """Draws the parameters of norms, and those that are constant."""
    vector = parameter.numel() == max(parameter.shape, default=1)
    constant = parameter.numel() > 0 and bool((parameter == parameter.flatten()[0]).all())
    if not constant and not (vector and "Norm" in type(module).__name__):
        return
    if name.endswith(("bias", "beta")):
        parameter.normal_(0, _SPREAD * _gain(module))
    elif vector and parameter.abs().max() < _TINY:
        parameter.uniform_(0.1, 0.3)
    elif vector or parameter.any():
        parameter.uniform_(0.5, 1.5)
    else:
        parameter.normal_(0, 1 / math.sqrt(parameter.numel() / len(parameter)))


def _gain(module: nn.Module) -> float:
    """Returns the standard deviation of what a layer gives for white input; 1 where it has no matrix."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim < 2:
        return 1.0
    return (weight.square().sum() / len(weight)).sqrt().item()


def _calibrate(module: nn.Module, given: tuple[Any, ...]) -> None:
    """Sets running statistics from what comes in, just before it is normalised by them."""
    mean, variance = module.running_mean, module.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(variance, Tensor)
    x = given[0].movedim(1, -1).flatten(0, -2)
    spread, centre = torch.var_mean(x, 0, correction=0)
    spread = spread.clamp(min=_LEAST * x.var(correction=0).item())
    mean.copy_(centre + _SPREAD * spread.sqrt() * torch.randn_like(centre))
    variance.copy_(spread * (0.5 + torch.rand_like(spread)))
