"""The error budget: a tolerance derived from what rounding does to independent computations, not chosen.

Source: `docs/explanation/theory.md` §8.
"""

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

LEAST_ROUNDINGS = 4
"""Computations that a budget needs. One may be right by luck, where few numbers come out or terms cancel."""

Result = TypeVar("Result")


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

    Args:
        hi: Reference in float64.
        lows: Four or more independent computations in the tested dtype; the one farthest from `hi` counts.

    Returns:
        The budget, in units of the values; nan, within which no error is, unless all references are finite.

    Raises:
        AssertionError: There are fewer computations, or `hi` is not float64.
    """
    assert len(lows) >= LEAST_ROUNDINGS, (
        f"a budget needs {LEAST_ROUNDINGS} roundings or more, but has {len(lows)}"
    )
    assert hi.dtype == torch.float64, f"hi must be float64, but is {hi.dtype}"
    if not hi.numel():
        return 0.0
    exact = hi.cpu()
    spreads = [(low.double().cpu() - exact).abs().max() for low in lows]
    last_digit = torch.finfo(lows[0].dtype).eps * exact.abs().max().item()
    explained = 2 * (torch.stack(spreads).max().item() + last_digit)
    return explained if math.isfinite(explained) else math.nan


def rounded_differently(item: Tensor | nn.Module, seed: int) -> Any:
    """Copies a tensor, or a module with its parameters, with the last digit of about half of the numbers moved.

    An honest computation from such an input is as right as any. It shows what rounding does when a few terms cancel and
    other orders of summation agree by luck. Whole numbers stay as they are.
    """
    if isinstance(item, Tensor):
        if not item.is_floating_point():
            return item
        return _moved(item.detach(), seed).requires_grad_(item.requires_grad)
    module = copy.deepcopy(item)
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.copy_(_moved(parameter, 1000 * seed + place))
    return module


def _moved(x: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.rand(x.shape, generator=generator, device="cpu").round().to(x)
    return x * (1 + torch.finfo(x.dtype).eps * steps)


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
    results = [compute(*inputs)]
    for number in range(count):
        seeds = itertools.count(number * len(inputs))
        moved = map(rounded_differently, inputs, seeds)
        results.append(compute(*moved))
    return results


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
    precise = [_as_float64(item) for item in inputs]
    return compute(*precise), roundings(compute, *inputs, count=count)


def _as_float64(item: Tensor | nn.Module) -> Tensor | nn.Module:
    if isinstance(item, nn.Module):
        return copy.deepcopy(item).double()
    if not item.is_floating_point():
        return item
    return item.detach().double().requires_grad_(item.requires_grad)


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
        shapes = [tuple(tensor.shape) for tensor in (actual, hi, low)]
        if len(set(shapes)) > 1:
            listed = ", ".join(map(str, shapes))
            raise AssertionError(f"{what}: shapes differ: {listed}")
        if actual.dtype != low.dtype:
            raise AssertionError(f"{what}: dtypes differ: {actual.dtype} against {low.dtype}")
    explained = budget(hi, lows)
    if math.isnan(explained):
        raise AssertionError(f"{what}: the references must be finite")
    allowed = torch.full(hi.shape, explained, dtype=torch.float64)
    if sums is not None:
        floor = sums.floor(actual.dtype).expand(hi.shape)
        allowed = torch.maximum(allowed, floor)
    errors = (actual.double().cpu() - hi.cpu()).abs()
    wrong = ~(errors <= allowed)
    if wrong.any():
        error = errors[wrong].max().item()
        limit = allowed[wrong].min().item()
        largest = hi.abs().max().item()
        raise AssertionError(
            f"{what}: error {error:.3g} is above the budget {limit:.3g} (max|hi| {largest:.3g})"
        )
