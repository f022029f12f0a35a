"""The error budget: how far off rounding alone can make a result, seen on independent computations of the same."""

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

Result = TypeVar("Result")

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


def roundings(
    compute: Callable[..., Result], *inputs: Tensor | nn.Module, count: int = LEAST_ROUNDINGS
) -> list[Result]:
    """Computes a result as it is, and `count` times from inputs whose last digits were rounded another way.

    Args:
        compute: An honest computation in the tested dtype, called with the inputs.
        *inputs: Its tensors, and modules whose parameters it reads. Copies are given to `compute`.
        count: Number of computations from other digits.

    Returns:
        `count` + 1 results, the plain one first.

    Example:
        >>> x = torch.full((2,), 3.0)
        >>> len(roundings(torch.sum, x)), roundings(torch.sum, x)[0]
        (5, tensor(6.))
    """
    seeds = (range(seed * len(inputs), (seed + 1) * len(inputs)) for seed in range(count))
    moved = ([rounded_otherwise(*pair) for pair in zip(inputs, several, strict=True)] for several in seeds)
    return [compute(*inputs), *(compute(*given) for given in moved)]


def references(
    compute: Callable[..., Result], *inputs: Tensor | nn.Module, count: int = LEAST_ROUNDINGS
) -> tuple[Result, list[Result]]:
    """Computes a result in float64, and `roundings` of it: what a budget is derived from.

    The arguments are those of `roundings`. The copies in float64 hold the same numbers.

    Example:
        >>> hi, lows = references(torch.sum, torch.full((2,), 3.0))
        >>> hi, len(lows)
        (tensor(6., dtype=torch.float64), 5)
    """
    return compute(*map(_as_float64, inputs)), roundings(compute, *inputs, count=count)


def _as_float64(given: Tensor | nn.Module) -> Tensor | nn.Module:
    if isinstance(given, nn.Module):
        return copy.deepcopy(given).double()
    return given.detach().double().requires_grad_(given.requires_grad) if given.is_floating_point() else given


def rounded_otherwise(given: Tensor | nn.Module, seed: int) -> Tensor | nn.Module:
    """Copies a tensor, or a module with its parameters, with the last digits rounded another way.

    Tensors of whole numbers stay as they are.
    """
    if isinstance(given, Tensor):
        if not given.is_floating_point():
            return given
        return rounded_differently(given.detach(), seed).requires_grad_(given.requires_grad)
    made = copy.deepcopy(given)
    with torch.no_grad():
        for place, parameter in enumerate(made.parameters()):
            parameter.copy_(rounded_differently(parameter, 1000 * seed + place))
    return made
