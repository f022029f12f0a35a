"""The error budget: a tolerance derived from what rounding does to independent computations, not chosen."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from convattn.functional.reference import (
    LEAST_ROUNDINGS,
    Result,
    rounded_otherwise,
    rounding_budget,
    roundings,
)

__all__ = ["Sums", "assert_within_budget", "budget", "references", "rounded_otherwise", "roundings"]


class Sums(NamedTuple):
    """What the elements of a result are sums of.

    Attributes:
        terms: Number n of terms of one element.
        absolute: Σ|terms| of each element, of the result's shape.
    """

    terms: int
    absolute: Float[Tensor, "..."]

    def floor(self, dtype: torch.dtype) -> Float[Tensor, "..."]:
        """Returns the rounding error that each element may have in any case: eps · √n · Σ|terms|."""
        return torch.finfo(dtype).eps * math.sqrt(self.terms) * self.absolute.double().cpu()


def budget(hi: Shaped[Tensor, "*shape"], lows: Sequence[Shaped[Tensor, "*shape"]]) -> float:
    """Returns the largest error that rounding explains: 2 (max|lo − hi| + eps(dtype) · max|hi|).

    Source: `docs/explanation/theory.md` §8.

    Args:
        hi: Reference in float64.
        lows: Four or more independent computations in the tested dtype; the one farthest from `hi` counts.

    Returns:
        The budget, in units of the values.

    Raises:
        AssertionError: There are fewer computations, `hi` is not float64, or a reference is not finite.
    """
    if hi.dtype != torch.float64:
        raise AssertionError(f"hi must be float64, but is {hi.dtype}")
    if not all(torch.isfinite(x).all() for x in (hi, *lows)):
        raise AssertionError("the references must be finite")
    return rounding_budget(hi, lows)


def assert_within_budget(
    actual: Shaped[Tensor, "..."],
    hi: Shaped[Tensor, "*shape"],
    lows: Sequence[Shaped[Tensor, "*shape"]],
    what: str = "result",
    *,
    sums: Sums | None = None,
) -> None:
    """Asserts that a result is as right as its dtype allows.

    Args:
        actual: The result tested.
        hi: Reference in float64.
        lows: Four or more independent computations in the dtype of `actual`, as `roundings` makes them: other orders
            of summation, or the same from inputs whose last digits were rounded another way.
        what: Name of the result, for the message.
        sums: What the elements are sums of. Give it where the result has fewer than about five elements: there all
            `lows` may be right by luck. An element may then be off by eps · √n · Σ|terms| in any case.

    Raises:
        AssertionError: Shapes or dtypes differ, or an error is above the budget, or a value is not finite.

    Example:
        >>> x = torch.randn(3, dtype=torch.float64)
        >>> assert_within_budget(x.float().exp(), x.exp(), roundings(torch.exp, x.float()))
    """
    for low in lows:
        if actual.shape != hi.shape or low.shape != hi.shape:
            raise AssertionError(
                f"{what}: shapes differ: {tuple(actual.shape)}, {tuple(hi.shape)}, {tuple(low.shape)}"
            )
        if actual.dtype != low.dtype:
            raise AssertionError(f"{what}: dtypes differ: {actual.dtype} against {low.dtype}")
    allowed = torch.full(hi.shape, budget(hi, lows), dtype=torch.float64)
    if sums is not None:
        allowed = torch.maximum(allowed, sums.floor(actual.dtype).expand(hi.shape))
    errors = (actual.double().cpu() - hi.cpu()).abs()
    wrong = ~(errors <= allowed)
    if wrong.any():
        error, limit = errors[wrong].max().item(), allowed[wrong].min().item()
        largest = hi.abs().max().item()
        raise AssertionError(
            f"{what}: error {error:.3g} is above the budget {limit:.3g} (max|hi| {largest:.3g})"
        )


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
    return (
        given.detach().double().requires_grad_(given.requires_grad)
        if given.is_floating_point()
        else given
    )
