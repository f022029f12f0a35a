"""The attention that a quadratic head gives to pixels off its centre, and the error that this causes at most."""

import math

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

__all__ = ["bound_per_unit", "off_centre_mass", "underflows"]


def off_centre_mass(sharpness: float, dims: int) -> float:
    """Bounds the weight that a quadratic head centred on a pixel gives to all other pixels.

    `ε(α) = θ(e^{−α})ⁿ − 1` with `θ(x) = 1 + 2 Σ_{m≥1} x^{m²}`: the sum of e^{−α‖δ‖²} over the lattice without its
    centre, whose own weight before normalisation is 1. It also holds at borders, where there are fewer keys. For small
    α it is evaluated as `θ(e^{−α}) = √(π/α) θ(e^{−π²/α})`, and never reported above e^700.

    Source: `docs/theory.md` §3.

    Args:
        sharpness: α > 0, in 1/pixel².
        dims: Number of axes n ≥ 1.

    Returns:
        ε(α), a share of the attention; above 1 the bound says nothing.

    Example:
        >>> round(off_centre_mass(5.0, dims=2), 4)
        0.0271
    """
    if sharpness < math.pi:  # Jacobi's identity: the sum over the dual lattice converges where this one is slow
        dual = 2 * _gaussian_tail(math.pi**2 / sharpness)
        return math.expm1(min(dims * (math.log(math.pi / sharpness) / 2 + math.log1p(dual)), 700.0))
    return math.expm1(dims * math.log1p(2 * _gaussian_tail(sharpness)))


def _gaussian_tail(sharpness: float) -> float:
    """Sums e^{−αm²} over m ≥ 1, for α ≥ π; the tenth term is below 1e-136 of the first."""
    return math.fsum(math.exp(-sharpness * step * step) for step in range(1, 10))


def underflows(sharpness: float, dtype: torch.dtype) -> bool:
    """Tells whether every weight off the centre is exactly zero, because e^{−α} underflows in the softmax.

    The softmax runs in at least float32.

    Example:
        >>> underflows(100.0, torch.float32), underflows(104.0, torch.float32), underflows(104.0, torch.float64)
        (False, True, False)
    """
    kind = torch.promote_types(dtype, torch.float32)
    return torch.exp(torch.tensor(-sharpness, dtype=kind)).item() == 0


def bound_per_unit(
    leak: float,
    kept: Float[Tensor, "heads outputs channels"],
    discarded: Float[Tensor, "heads outputs channels"] | None = None,
) -> float:
    """Bounds the output error for inputs of absolute value at most 1.

    `|y_attn − y_conv| ≤ max_o Σ_h (2ε ‖W̃_h[o]‖₁ + ‖(W_h − W̃_h)[o]‖₁)`, with ε = `leak`, W̃_h = `kept` and
    W_h − W̃_h = `discarded` (None for heads of full width). A head gives at most ε too little to its own pixel and at
    most ε to others. The second term is what a limited head width, and rounding of the product of its two matrices,
    discards.
    """
    rows = 2 * leak * reduce(kept.abs(), "heads outputs channels -> outputs", "sum")
    if discarded is not None:
        rows = rows + reduce(discarded.abs(), "heads outputs channels -> outputs", "sum")
    return rows.max().item()
