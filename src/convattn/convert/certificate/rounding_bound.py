"""The largest error that rounding can cause, for any image and any order of summation."""

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

__all__ = ["RoundingBound", "attention_rounding", "convolution_rounding"]

_STEPS = 8
"""Roundings on the way to one output (weight, score, product, sum with the bias), generously counted."""

_EXPONENT = {torch.float64: 745.2}
"""x beyond which e^−x is zero; elsewhere softmax is in float32, and it is 104."""


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
