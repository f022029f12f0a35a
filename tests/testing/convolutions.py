"""Convolutions by their definition: a second road to what torch and the attention layers compute."""

import copy
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float
from tests.testing.keys import key_index, take_keys
from torch import Tensor

from convattn.budget import Sums, assert_within_budget, rounded_differently, roundings
from convattn.convert.taps import AnyConvolution, TransposedConvolution

__all__ = ["FEW", "assert_convolves", "convolve", "rounded_differently", "tap_maps"]

FEW = 5
"""Elements below which all roundings of a result may be right by luck, so that its sums must be given."""


def assert_convolves(
    actual: Float[Tensor, "..."],
    conv: AnyConvolution,
    x: Float[Tensor, "batch channels *spatial"],
    what: str = "result",
) -> None:
    """Asserts that a result is, within the error budget, what a convolution gives on images x.

    Example:
        >>> from torch import nn
        >>> conv, x = nn.Conv1d(2, 3, 3), torch.randn(1, 2, 5)
        >>> assert_convolves(conv(x), conv, x)
    """
    exact, sums = copy.deepcopy(conv).double(), None
    with torch.no_grad():
        hi = exact(x.double())
        lows = [convolve(conv, x, backwards=True), *roundings(convolve, conv, x)]
        if hi.numel() < FEW:
            for parameter in exact.parameters():
                parameter.abs_()
            terms = conv.in_channels // conv.groups * prod(conv.kernel_size) + 1
            sums = Sums(terms, exact(x.double().abs()))
        assert_within_budget(actual, hi, lows, what, sums=sums)


def convolve(
    conv: AnyConvolution, x: Float[Tensor, "batch channels *spatial"], *, backwards: bool = False
) -> Float[Tensor, "batch outputs *out"]:
    """Computes a convolution by its definition, in the dtype of its weights; `backwards` sums from the last term on.

    A plain one gathers, tap by tap: ``y[o] = b + Σ_t W[t] x̃[s·o + d·t]``. A transposed one scatters, tap by tap:
    ``ỹ[s·i + d·t] += W[t]ᵀ x[i]``, and crops its padding off ỹ. Every sum is taken one term after another, in the
    gradients as well (float32 and float64).

    Example:
        >>> from torch import nn
        >>> conv, x = nn.Conv1d(2, 3, 3, padding=1), torch.zeros(1, 2, 5)
        >>> torch.equal(convolve(conv, x), conv(x))
        True
    """
    transposed = isinstance(conv, TransposedConvolution)
    order = -1 if backwards else 1
    term = _scatter if transposed else _gather
    taps = list(product(*map(range, conv.kernel_size)))[::order]
    y = term(conv, x.flip(0) if backwards else x, taps, order)
    y = y.flip(0) if backwards else y
    if conv.bias is None:
        return y
    ones = y.new_ones(len(y), 1, prod(y.shape[2:]))
    return y + _Outer.apply(conv.bias[None], ones, order).view(y.shape)


def tap_maps(
    conv: AnyConvolution, weight: Float[Tensor, "..."]
) -> Float[Tensor, "taps outputs channels"]:
    """Reads a weight (or its gradient) of a convolution as one matrix (outputs, inputs // groups) per tap.

    A transposed convolution meets its taps in reverse order: what it scatters forwards is gathered from behind.
    """
    taps = list(product(*map(range, conv.kernel_size)))
    if not isinstance(conv, TransposedConvolution):
        return torch.stack([weight[(slice(None), slice(None), *tap)] for tap in taps])
    return torch.stack([_one_tap(weight, tap, conv.groups).mT.flatten(0, 1) for tap in taps[::-1]])


def _one_tap(
    weight: Tensor, tap: tuple[int, ...], groups: int
) -> Float[Tensor, "groups inputs outputs"]:
    return rearrange(
        weight[(slice(None), slice(None), *tap)],
        "(groups inputs) o -> groups inputs o",
        groups=groups,
    )


def _gather(conv: AnyConvolution, x: Tensor, taps: Sequence[tuple[int, ...]], order: int) -> Tensor:
    """Computes a plain convolution without bias: each tap reads pixels."""
    keys = take_keys(x, _plain_index(conv, x.shape[2:]))
    window = [d * (k - 1) + 1 for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    counts = [(n - w) // s + 1 for n, w, s in zip(keys.shape[2:], window, conv.stride, strict=True)]
    y = 0
    for tap in taps:
        first = [t * d for t, d in zip(tap, conv.dilation, strict=True)]
        place = [
            slice(f, f + s * (c - 1) + 1, s)
            for f, s, c in zip(first, conv.stride, counts, strict=True)
        ]
        weight = rearrange(
            conv.weight[(slice(None), slice(None), *tap)], "(g out) i -> g out i", g=conv.groups
        )
        y = y + _block_product(keys[(slice(None), slice(None), *place)], weight, order)
    assert isinstance(y, Tensor)
    return y


def _plain_index(conv: AnyConvolution, sizes: Sequence[int]) -> list[list[int]]:
    """Lists the key pixels of a plain convolution, for each axis."""
    pairs = []
    for axis, (k, d) in enumerate(zip(conv.kernel_size, conv.dilation, strict=True)):
        total = d * (k - 1)
        words = {"same": (total // 2, (total + 1) // 2), "valid": (0, 0)}
        pairs.append(
            words[conv.padding] if isinstance(conv.padding, str) else (conv.padding[axis],) * 2
        )
    return [key_index(n, pair, conv.padding_mode) for n, pair in zip(sizes, pairs, strict=True)]


def _scatter(
    conv: AnyConvolution, x: Tensor, taps: Sequence[tuple[int, ...]], order: int
) -> Tensor:
    """Computes a transposed convolution without bias: each tap writes pixels."""
    spans = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in _sizes(conv, x)]
    extra = [int(p) for p in conv.output_padding]
    y = x.new_zeros(
        x.shape[0], conv.out_channels, *(span + e for span, e in zip(spans, extra, strict=True))
    )
    for tap in taps:
        place = [
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, (n, s, d, _) in zip(tap, _sizes(conv, x), strict=True)
        ]
        written = _block_product(x, _one_tap(conv.weight, tap, conv.groups).mT, order)
        layer = torch.zeros_like(y)
        layer[(slice(None), slice(None), *place)] = written
        y = y + layer
    crop = [
        slice(int(p), span + e - int(p))
        for p, span, e in zip(conv.padding, spans, extra, strict=True)
    ]
    return y[(slice(None), slice(None), *crop)]


def _sizes(conv: AnyConvolution, x: Tensor) -> list[tuple[int, int, int, int]]:
    return list(zip(x.shape[2:], conv.stride, conv.dilation, conv.kernel_size, strict=True))


def _block_product(x: Tensor, weight: Float[Tensor, "groups outputs inputs"], order: int) -> Tensor:
    """Applies one matrix per group at each pixel, summing over channels one by one."""
    split = rearrange(
        x, "batch (groups inputs) ... -> batch groups inputs ...", groups=weight.shape[0]
    )
    y = 0
    for i in list(range(weight.shape[2]))[::order]:
        y = y + _Outer.apply(weight[:, :, i], split[:, :, i].flatten(2), order)
    assert isinstance(y, Tensor)
    return y.flatten(1, 2).unflatten(-1, x.shape[2:])


class _Outer(torch.autograd.Function):
    """Multiplies a weight per group and output by a channel per group, and sums the weight's gradient one by one."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, channel: Tensor, order: int) -> Tensor:
        """Returns (batch, groups, outputs, pixels)."""
        ctx.save_for_backward(weight, channel)
        ctx.order = order
        return einsum(
            weight, channel, "groups outputs, batch groups pixels -> batch groups outputs pixels"
        )

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        """Adds the weight's gradient up from the first pixel to the last, each sum rounded."""
        (grad,), (weight, channel) = grad_outputs, ctx.saved_tensors
        back = einsum(
            weight, grad, "groups outputs, batch groups outputs pixels -> batch groups pixels"
        )
        terms = rearrange(
            grad * channel[:, :, None],
            "batch groups outputs pixels -> (batch pixels) groups outputs",
        )
        ordered = torch.cat(
            [torch.zeros_like(weight)[None], terms if ctx.order > 0 else terms.flip(0)]
        )
        return torch.from_numpy(np.add.accumulate(ordered.numpy())[-1]), back, None
