"""Small faults, for negative controls."""

import torch
from torch import Tensor


def leaky(weights: Tensor) -> Tensor:
    """Moves 1e-5 of every query's attention to the last key."""
    leaked = weights * (1 - 1e-5)
    return torch.cat([leaked[..., :-1], leaked[..., -1:] + 1e-5], dim=-1)


def halved(x: Tensor) -> Tensor:
    """Rounds to half precision, and back to the dtype it was in."""
    return x.half().to(x.dtype)


def eight_bits(x: Tensor) -> Tensor:
    """Rounds to eight bits, and back to the dtype it was in."""
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def of_bfloat16(x: Tensor) -> Tensor:
    """Rounds to bfloat16, and back to the dtype it was in."""
    return x.bfloat16().to(x.dtype)


def last_without_gradient(x: Tensor) -> Tensor:
    """Keeps gradients from flowing back to the last entry."""
    return torch.cat([x[:-1], x[-1:].detach()])
