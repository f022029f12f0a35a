"""Bounds on the error of a conversion, for any image: from attention off the taps, and from rounding."""

import copy
import math
from typing import NamedTuple

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from convattn.convert.classes import AnyConvolution
from convattn.encodings import Quadratic
from convattn.layers import RelativeAttention

_STEPS = 8
"""Roundings on the way to one output (weight, score, product, sum with the bias), generously counted."""

_EXPONENT = {torch.float64: 745.2}
"""x beyond which e^−x is zero; elsewhere softmax is in float32, and it is 104."""


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


class RoundingBound(NamedTuple):
    """The largest change of an output by rounding, if nothing overflows.

    The error of a sum of n terms, in any order, is at most `(1 + u)ⁿ − 1 ≤ e^{nu} − 1` times the sum of their absolute
    values, with u = ½ eps. Numbers narrower than float32 are summed in float32 and rounded when they are stored.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3.1 and §4.2.
    """

    per_unit: float  # The part that is proportional to the largest absolute value of the image
    at_zero: float  # The rest, for an image of zeros: rounding of the bias, and underflow

    def on(self, largest: float) -> float:
        """Returns the bound for images with a given largest absolute value."""
        return self.per_unit * largest + self.at_zero


def convolution_rounding(
    conv: AnyConvolution, kernel: Float[Tensor, "outputs channels *taps"], rows: Float[Tensor, "heads outputs"]
) -> RoundingBound:
    """Bounds the rounding error of a convolution that replaces attention with row sums Σ_i |W_h[o, i]|."""
    terms, writes = kernel[0].numel() + _STEPS, kernel[0, 0].numel() + _STEPS
    weights, source = kernel.abs().flatten(1).sum(1).max().item(), rows.sum(0).max().item()
    return _bound(conv, weights, source, terms + len(rows) * kernel.shape[1], writes)


def attention_rounding(layer: RelativeAttention, conv: AnyConvolution) -> RoundingBound:
    """Bounds the rounding error of attention that replaces a convolution, compared with the convolution in float64.

    At most `2 √(E/α) + 1` weights of a quadratic head along an axis are not zero, where E is the exponent at which they
    underflow. So the bound holds for images of any size.
    """
    keys, width = 1, next(layer.values.parameters()).shape[1]
    if isinstance(layer.encoding, Quadratic):
        alpha = layer.encoding.sharpness.detach().double().min().item()
        keys += 2 * math.isqrt(math.ceil(_EXPONENT.get(conv.weight.dtype, 104.0) / alpha)) + 2
    terms = layer.num_heads * (layer.in_channels // layer.groups + width) + 2 * layer.dims * keys + _STEPS
    values = copy.deepcopy(layer.values).double()
    with torch.no_grad():
        for parameter in values.parameters():
            parameter.abs_()  # the product of narrow matrices sums terms larger than its own
        weights = reduce(values.maps(), "heads outputs channels -> outputs", "sum").max().item()
    return _bound(conv, weights, weights, terms, layer.num_heads + layer.dims + _STEPS)


def _bound(conv: AnyConvolution, weights: float, source: float, terms: int, writes: int) -> RoundingBound:
    """Bounds the rounding error of a result plus that of its source in float64.

    `weights` and `source` are the largest sums of absolute weights of one output. `terms` counts the terms and further
    roundings in the dtype of the sum, `writes` the roundings to a narrower dtype. `conv` gives the dtype and the bias.
    """
    dtype = conv.weight.dtype
    sums, exact = (torch.finfo(kind) for kind in (torch.promote_types(dtype, torch.float32), torch.float64))
    own = torch.finfo(dtype)
    narrow = writes if own.eps > sums.eps else 0
    lost, lost_by_source = math.expm1((terms * sums.eps + narrow * own.eps) / 2), math.expm1(terms * exact.eps / 2)
    bias = 0.0 if conv.bias is None else conv.bias.detach().abs().max().item()
    smallest = (terms * sums.tiny + narrow * own.smallest_normal * own.eps) * max(1.0, weights)
    return RoundingBound(weights * lost + source * lost_by_source, bias * (lost + lost_by_source) + smallest)
