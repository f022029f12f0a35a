"""A-priori bounds: what heads leak off their pixel, and what rounding adds at most, for any input."""

import copy
import math
from typing import NamedTuple

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings import Quadratic
from convattn.errors import ArgumentError, must_be
from convattn.layers import RelativeAttention

STEPS = 8
"""Roundings on the way to one output (weight, score, product, sum with the bias), generously counted."""

_EXPONENT = {torch.float64: 745.2}
"""x beyond which e^−x is zero; elsewhere softmax is in float32, and it is 104."""


def off_centre_mass(sharpness: float, dims: int) -> float:
    """Bounds the weight that a quadratic head centred on a pixel gives to all other pixels.

    `ε(α) = θ(e^{−α})ⁿ − 1` with `θ(x) = 1 + 2 Σ_{m≥1} x^{m²}`: the sum of e^{−α‖δ‖²} over the lattice without its
    centre, whose own weight before normalisation is 1. It also holds at borders, where there are fewer keys. For small
    α it is evaluated as `θ(e^{−α}) = √(π/α) θ(e^{−π²/α})`, and never reported above e^700.

    Source: `docs/explanation/theory.md` §3.

    Args:
        sharpness: α > 0, in 1/pixel².
        dims: Number of axes n ≥ 1.

    Returns:
        ε(α), a share of the attention; above 1 the bound says nothing.

    Raises:
        ArgumentError: α is not positive.

    Example:
        >>> round(off_centre_mass(5.0, dims=2), 4)
        0.0271
    """
    if not sharpness > 0:
        raise ArgumentError(must_be("sharpness", "above 0", sharpness))
    if sharpness >= math.pi:
        return math.expm1(dims * math.log1p(2 * _gaussian_tail(sharpness)))
    # Jacobi's identity: the sum over the dual lattice converges where this one is slow
    dual = 2 * _gaussian_tail(math.pi**2 / sharpness)
    exponent = dims * (math.log(math.pi / sharpness) / 2 + math.log1p(dual))
    return math.expm1(min(exponent, 700.0))


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


def weight_of(layer: RelativeAttention) -> nn.Parameter:
    """Returns the first parameter of a layer's values, whose dtype and device are those of the layer."""
    return next(layer.values.parameters())


def lowest_sharpness(layer: RelativeAttention) -> float | None:
    """Returns the smallest α of quadratic heads; None for other encodings."""
    if not isinstance(layer.encoding, Quadratic):
        return None
    return layer.encoding.sharpness.detach().double().min().item()


def largest(x: Tensor) -> float:
    """Returns the largest absolute value, or 0 for an empty tensor."""
    return x.abs().max().item() if x.numel() else 0.0


class RoundingBound(NamedTuple):
    """A-priori bound on the rounding error of a result plus that of its source in float64, without overflow."""

    per_unit: float  # For images of largest absolute value 1
    at_zero: float  # What an image of zeros adds: rounding of the bias, and underflow

    def at(self, unit: float) -> float:
        """Returns the bound for images of a largest absolute value."""
        return self.per_unit * unit + self.at_zero


def rounding_bound(
    dtype: torch.dtype,
    bias: Tensor | None,
    *,
    weights: float,
    source: float,
    terms: int,
    writes: int,
) -> RoundingBound:
    """Bounds rounding where sums of `terms` products are stored `writes` times.

    The error of a sum of n terms, in any order, is at most `(1 + u)ⁿ − 1 ≤ e^{nu} − 1` times the sum of their absolute
    values, with u = ½ eps. Numbers narrower than float32 are summed in float32 and rounded when they are stored.
    Source: Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3.1 and §4.2.

    `weights` and `source` are the largest sums of absolute weights of one output, of the result and of its source.
    `terms` counts the terms and further roundings in the dtype of the sum, `writes` the roundings to a narrower dtype.
    """
    own = torch.finfo(dtype)
    sums = torch.finfo(torch.promote_types(dtype, torch.float32))
    double = torch.finfo(torch.float64)
    if own.eps == sums.eps:
        writes = 0
    lost = math.expm1((terms * sums.eps + writes * own.eps) / 2)
    lost_by_source = math.expm1(terms * double.eps / 2)
    underflow = terms * sums.tiny + writes * own.smallest_normal * own.eps
    at_zero = underflow * max(1.0, weights)
    if bias is not None:
        at_zero += largest(bias.detach()) * (lost + lost_by_source)
    return RoundingBound(weights * lost + source * lost_by_source, at_zero)


def kernel_rounding(
    dtype: torch.dtype,
    bias: Tensor | None,
    kernel: Float[Tensor, "outputs channels *taps"],
    rows: Float[Tensor, "heads outputs"],
) -> RoundingBound:
    """Bounds the rounding of a convolution that replaces attention with row sums Σ_i |W_h[o, i]|."""
    heads = len(rows)
    channels = kernel.shape[1]
    return rounding_bound(
        dtype,
        bias,
        weights=kernel.abs().flatten(1).sum(1).max().item(),
        source=rows.sum(0).max().item(),
        terms=kernel[0].numel() + STEPS + heads * channels,
        writes=kernel[0, 0].numel() + STEPS,
    )


def attention_rounding(
    layer: RelativeAttention, *, keys: int | None = None, largest_score: float = 0.0
) -> RoundingBound:
    """Bounds the rounding of attention that replaces a convolution, compared with the convolution in float64.

    At most `2 √(E/α) + 1` weights of a quadratic head along an axis are not zero, where E is the exponent at which they
    underflow. So the bound holds for images of any size. Heads of other encodings see `keys` keys along an axis, one
    unless given. A score is subtracted from others; what that rounds moves weights by shares of the largest score.
    """
    parameter = weight_of(layer)
    if keys is None:
        keys = _keys_of_quadratic_heads(layer, parameter.dtype)
    width = parameter.shape[1]
    values = copy.deepcopy(layer.values).double()
    with torch.no_grad():
        for one in values.parameters():
            one.abs_()  # the product of narrow matrices sums terms larger than its own
        rows = reduce(values.maps(), "heads outputs channels -> outputs", "sum")
    weights = rows.max().item()
    products = layer.num_heads * (layer.in_channels // layer.groups + width)
    from_scores = math.ceil(8 * layer.dims * largest_score)
    return rounding_bound(
        parameter.dtype,
        layer.bias,
        weights=weights,
        source=weights,
        terms=products + 2 * layer.dims * keys + STEPS + from_scores,
        writes=layer.num_heads + layer.dims + STEPS,
    )


def _keys_of_quadratic_heads(layer: RelativeAttention, dtype: torch.dtype) -> int:
    """Returns how many keys along an axis have weights that are not zero; 1 for other encodings."""
    alpha = lowest_sharpness(layer)
    if alpha is None:
        return 1
    reach = math.isqrt(math.ceil(_EXPONENT.get(dtype, 104.0) / alpha))
    return 1 + 2 * reach + 2
