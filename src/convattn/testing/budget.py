"""The error budget: a tolerance derived from what rounding does to an independent computation, not chosen."""

import torch
from jaxtyping import Shaped
from torch import Tensor

from convattn.functional.rounding import rounding_budget

__all__ = ["assert_within_budget", "budget"]


def budget(hi: Shaped[Tensor, "*shape"], lo: Shaped[Tensor, "*shape"]) -> float:
    """Returns the largest error that rounding explains: 2 (max|lo − hi| + eps(dtype) · max|hi|).

    Source: `docs/theory.md` §8.

    Args:
        hi: Reference in float64.
        lo: Independent reference in the tested dtype.

    Returns:
        The budget, in units of the values.

    Raises:
        AssertionError: `hi` is not float64, or the references are not finite.
    """
    if hi.dtype != torch.float64:
        raise AssertionError(f"hi must be float64, but is {hi.dtype}")
    if not (torch.isfinite(hi).all() and torch.isfinite(lo).all()):
        raise AssertionError("the references must be finite")
    return rounding_budget(hi, [lo])


def assert_within_budget(
    actual: Shaped[Tensor, "..."], hi: Shaped[Tensor, "*shape"], lo: Shaped[Tensor, "*shape"], what: str = "result"
) -> None:
    """Asserts that a result is as right as its dtype allows.

    Args:
        actual: The result tested.
        hi: Reference in float64.
        lo: Independent reference in the dtype of `actual`.
        what: Name of the result, for the message.

    Raises:
        AssertionError: Shapes or dtypes differ, or the error is above the budget, or a value is not finite.

    Example:
        >>> x = torch.randn(3, dtype=torch.float64)
        >>> assert_within_budget(x.float(), x, x.float())
    """
    if actual.shape != hi.shape or lo.shape != hi.shape:
        raise AssertionError(f"{what}: shapes differ: {tuple(actual.shape)}, {tuple(hi.shape)}, {tuple(lo.shape)}")
    if actual.dtype != lo.dtype:
        raise AssertionError(f"{what}: dtypes differ: {actual.dtype} against {lo.dtype}")
    allowed = budget(hi, lo)
    error = (actual.double().cpu() - hi.cpu()).abs().max().item() if hi.numel() else 0.0
    if not error <= allowed:
        raise AssertionError(
            f"{what}: error {error:.3g} is above the budget {allowed:.3g} (max|hi| {hi.abs().max():.3g})"
        )
