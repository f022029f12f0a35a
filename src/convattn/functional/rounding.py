"""The error budget: how far off rounding alone can make a result, seen on independent computations of the same."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def rounding_budget(hi: Shaped[Tensor, "*shape"], lows: Sequence[Shaped[Tensor, "*shape"]]) -> float:
    """Returns the largest error that rounding explains: 2 (max|lo − hi| + eps(dtype) · max|hi|).

    Source: `docs/theory.md` §8.

    Args:
        hi: Reference in float64.
        lows: One or more independent references in the tested dtype; the one farthest from `hi` counts.

    Returns:
        The budget, in units of the values; 0 where there are none.

    Example:
        >>> one = torch.ones(3, dtype=torch.float64)
        >>> rounding_budget(one, [one.float()]) == 2 * torch.finfo(torch.float32).eps
        True
    """
    if not hi.numel():
        return 0.0
    exact = hi.cpu()
    spread = max((lo.double().cpu() - exact).abs().max().item() for lo in lows)
    return 2 * (spread + torch.finfo(lows[0].dtype).eps * exact.abs().max().item())


def rounded_differently(x: Float[Tensor, "*shape"], seed: int) -> Float[Tensor, "*shape"]:
    """Moves the last digit of about half of the numbers, as if they had been rounded another way.

    An honest computation from such an input is as right as any, and shows what rounding does where a few terms cancel
    and other orders of summation agree by luck.

    Args:
        x: Numbers.
        seed: Seed of the choice.

    Returns:
        Numbers that differ from x by at most a few units in the last place.
    """
    chosen = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).round()
    return x * (1 + torch.finfo(x.dtype).eps * chosen.to(device=x.device, dtype=x.dtype))
