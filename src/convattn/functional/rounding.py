"""The error budget: how far off rounding alone can make a result, seen on independent computations of the same."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

LEAST_ROUNDINGS = 4
"""Computations that a budget needs. One may be right by luck, where few numbers come out or terms cancel."""


def rounding_budget(hi: Shaped[Tensor, "*shape"], lows: Sequence[Shaped[Tensor, "*shape"]]) -> float:
    """Returns the largest error that rounding explains: 2 (max|lo − hi| + eps(dtype) · max|hi|).

    `hi` is the float64 reference. `lows` are `LEAST_ROUNDINGS` or more independent computations in the tested dtype, of
    which the one farthest from `hi` counts. Source: `docs/theory.md` §8.
    """
    assert len(lows) >= LEAST_ROUNDINGS, f"a budget needs {LEAST_ROUNDINGS} roundings or more, but has {len(lows)}"
    if not hi.numel():
        return 0.0
    exact = hi.cpu()
    spread = max((lo.double().cpu() - exact).abs().max().item() for lo in lows)
    return 2 * (spread + torch.finfo(lows[0].dtype).eps * exact.abs().max().item())


def rounded_differently(x: Float[Tensor, "*shape"], seed: int) -> Float[Tensor, "*shape"]:
    """Moves the last digit of about half of the numbers, as if they had been rounded another way."""
    # An honest computation from such an input is as right as any, and shows what rounding does when a few terms cancel
    # and other orders of summation agree by luck.
    chosen = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).round()
    return x * (1 + torch.finfo(x.dtype).eps * chosen.to(device=x.device, dtype=x.dtype))
