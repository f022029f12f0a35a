"""The definition of attention with which every other path is compared: key images, scores, softmax, means, heads.

Written to be read, with all N × N weights in memory. Notation and signs follow `docs/explanation/theory.md`. The error
budget at the end says how far a path may be from the definition: as far as independent computations are by rounding.
"""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from convattn.grid import Axis, Geometry

_TORCH_MODES = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}


def pad_keys(
    x: Shaped[Tensor, "batch channels *spatial"], geometry: Geometry
) -> Shaped[Tensor, "batch channels *keys"]:
    """Dilates and pads images; the pixels of the result are the keys.

    The input dilation first puts zeros between pixels, then the image is padded. Padded pixels are keys like the others
    and receive attention, even if they are zero. Negative padding crops the image.

    Args:
        x: Images.
        geometry: Padding and input dilation, one entry per spatial axis.

    Returns:
        The key images; `x` itself if there is nothing to do.

    Raises:
        ShapeError: Reflect padding as large as the image, or circular padding larger than it.

    Example:
        >>> geometry = Geometry.parse(1, padding=[(2, 0)], padding_mode="replicate")
        >>> pad_keys(torch.tensor([[[3.0, 4.0]]]), geometry).tolist()
        [[[3.0, 3.0, 3.0, 4.0]]]
    """
    if geometry.keeps_grid:
        return x
    x = dilate(x, geometry.input_dilation)
    if all(pair == (0, 0) for pair in geometry.padding):
        return x
    for number, size in enumerate(x.shape[2:]):
        geometry.require_padding(number, size)
    flat = tuple(max(pixels, 0) for pair in reversed(geometry.padding) for pixels in pair)
    padded = functional.pad(x, flat, mode=_TORCH_MODES[geometry.padding_mode])
    for dim, (before, after) in enumerate(geometry.padding, start=2):
        padded = padded[
            (slice(None),) * dim + (slice(max(-before, 0), padded.shape[dim] + min(after, 0)),)
        ]
    return padded


def query_pixels(
    keys: Shaped[Tensor, "batch channels *keys"], axes: Sequence[Axis]
) -> Shaped[Tensor, "batch channels *queries"]:
    """Takes the pixels of the key image at the queries' positions.

    Args:
        keys: Key images.
        axes: Queries and keys along each axis.

    Returns:
        The key image at the queries' positions.
    """
    for dim, axis in enumerate(axes, start=2):
        if axis.queries != range(axis.keys):
            keys = keys[
                (slice(None),) * dim
                + (slice(axis.queries.start, axis.queries.stop, axis.queries.step),)
            ]
    return keys


def dilate(
    x: Shaped[Tensor, "batch channels *spatial"], steps: Sequence[int]
) -> Shaped[Tensor, "batch channels *spread"]:
    """Puts step − 1 zeros between neighbouring pixels along each axis; returns `x` itself if every step is 1."""
    if set(steps) == {1}:
        return x
    sizes = [(size - 1) * step + 1 for size, step in zip(x.shape[2:], steps, strict=True)]
    wide = x.new_zeros(*x.shape[:2], *sizes)
    wide[(slice(None), slice(None), *(slice(None, None, step) for step in steps))] = x
    return wide


def displacement_scores(
    table: Float[Tensor, "heads *displacements"], axes: Sequence[Axis]
) -> Float[Tensor, "heads queries keys"]:
    """Looks up the score of every query and key by their displacement: s_h(q, k) = table_h[k − q].

    Args:
        table: Scores of all displacements of `axes`, from the lowest to the highest along each axis.
        axes: Queries and keys along each axis.

    Returns:
        Scores; queries and keys are flattened in row-major order.
    """
    dims = len(axes)
    index = []
    for number, axis in enumerate(axes):
        shape = [1] * (2 * dims)
        shape[number], shape[dims + number] = len(axis.queries), axis.keys
        index.append(axis.index(table.device).view(shape))
    return table[(slice(None), *index)].flatten(1, dims).flatten(2)


def attention_weights(
    scores: Float[Tensor, "*batch queries keys"],
) -> Float[Tensor, "*batch queries keys"]:
    """Normalises scores over the keys: A[q, k] = exp s(q, k) / Σ_k' exp s(q, k').

    Args:
        scores: Scores in any float dtype; those of fewer than 32 bits are normalised in float32.

    Returns:
        Weights that sum to one over the keys, in at least float32.

    Example:
        >>> attention_weights(torch.tensor([[0.0, 0.0]])).tolist()
        [[0.5, 0.5]]
    """
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def position_weights(
    table: Float[Tensor, "heads *displacements"], axes: Sequence[Axis]
) -> Float[Tensor, "heads queries keys"]:
    """Takes the softmax of position scores, with zero for every weight below the root of the smallest normal number.

    Products of smaller weights are subnormal, and processors multiply subnormal numbers far more slowly.
    In float32 the bound is 1e-19, twelve digits below what rounding leaves of the output.

    Args:
        table: Scores of all displacements of `axes`, from the lowest to the highest along each axis.
        axes: Queries and keys along each axis.

    Returns:
        Weights that sum to one over the keys, in at least float32.

    Example:
        >>> position_weights(torch.tensor([[0.0, -60.0]]), [Axis(range(1), 2)]).tolist()
        [[[1.0, 0.0]]]
    """
    weights = attention_weights(displacement_scores(table, axes))
    return torch.where(weights < torch.finfo(weights.dtype).tiny ** 0.5, 0, weights)


def join_axes(weights: Sequence[Float[Tensor, "heads _ _"]]) -> Float[Tensor, "heads queries keys"]:
    """Multiplies the weights along each axis to those of every query and key: A = A_1 ⊗ … ⊗ A_n.

    Args:
        weights: For each axis, (heads, queries, keys).

    Returns:
        Weights; queries and keys are flattened in row-major order.
    """
    whole = weights[0]
    for weight in weights[1:]:
        whole = (whole[:, :, None, :, None] * weight[:, None, :, None, :]).flatten(3).flatten(1, 2)
    return whole


def attend(
    weights: Float[Tensor, "*batch heads queries keys"],
    keys: Float[Tensor, "images channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
    dropout: float = 0.0,
) -> Float[Tensor, "images outputs queries"]:
    """Takes weighted means of the keys and applies the heads' matrices: y[q] = Σ_h W_h Σ_k A_h[q, k] x[k].

    Args:
        weights: A_h, the same for all images, or one per image.
        keys: Key images.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.
        dropout: Probability with which a weight is set to zero, the others growing in proportion; 0 at inference.

    Returns:
        Output channels at each query, in the dtype of `keys`.
    """
    pattern = "heads queries keys" if weights.ndim == 3 else "images heads queries keys"
    weights = (functional.dropout(weights, dropout) if dropout else weights).to(keys.dtype)
    pixels = rearrange(keys, "images channels ... -> images channels (...)")
    mixed = einsum(
        weights, pixels, f"{pattern}, images channels keys -> images heads channels queries"
    )
    return combine_heads(mixed, maps, groups)


class HeadMaps(NamedTuple):
    """The heads' matrices W_h, whole or as products of two narrow ones."""

    value: Float[Tensor, "heads inner channels_per_group"]  # W_val, or W_h itself
    output: Float[Tensor, "heads outputs inner_per_group"] | None  # W_out; None if `value` is W_h
    groups: int  # blocks of each W_h

    def whole(self) -> Float[Tensor, "heads outputs channels_per_group"]:
        """Returns W_h = W_out^(h) W_val^(h), group by group."""
        if self.output is None:
            return self.value
        product = einsum(
            rearrange(
                self.output,
                "heads (groups outputs) width -> heads groups outputs width",
                groups=self.groups,
            ),
            rearrange(
                self.value,
                "heads (groups width) channels -> heads groups width channels",
                groups=self.groups,
            ),
            "heads groups outputs width, heads groups width channels -> heads groups outputs channels",
        )
        return rearrange(
            product, "heads groups outputs channels -> heads (groups outputs) channels"
        )


def combine_heads(
    mixed: Float[Tensor, "batch heads channels *queries"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
) -> Float[Tensor, "batch outputs *queries"]:
    """Applies each head's matrix and sums over heads: y[q] = Σ_h W_h · mixed_h[q].

    Args:
        mixed: Per head, the attention-weighted mean of the input channels at each query.
        maps: W_h; with groups its block-diagonal, as in `torch.nn.Conv2d`.
        groups: Number of blocks, dividing channels and outputs.

    Returns:
        The output channels at each query.
    """
    blocks = rearrange(
        maps, "heads (groups outputs) channels -> heads groups outputs channels", groups=groups
    )
    split = rearrange(
        mixed,
        "batch heads (groups channels) ... -> batch heads groups channels (...)",
        groups=groups,
    )
    combined = einsum(
        split,
        blocks,
        "batch heads groups channels queries, heads groups outputs channels -> batch groups outputs queries",
    )
    return combined.reshape(mixed.shape[0], maps.shape[1], *mixed.shape[3:])


Result = TypeVar("Result")

LEAST_ROUNDINGS = 4
"""Computations that a budget needs. One may be right by luck, where few numbers come out or terms cancel."""


def rounding_budget(
    hi: Shaped[Tensor, "*shape"], lows: Sequence[Shaped[Tensor, "*shape"]]
) -> float:
    """Returns the largest error that rounding explains: 2 (max|lo − hi| + eps(dtype) · max|hi|).

    `hi` is the float64 reference. `lows` are `LEAST_ROUNDINGS` or more independent computations in the tested dtype, of
    which the one farthest from `hi` counts. Source: `docs/explanation/theory.md` §8.
    """
    assert len(lows) >= LEAST_ROUNDINGS, (
        f"a budget needs {LEAST_ROUNDINGS} roundings or more, but has {len(lows)}"
    )
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
    moved = (
        [rounded_otherwise(*pair) for pair in zip(inputs, several, strict=True)]
        for several in seeds
    )
    return [compute(*inputs), *(compute(*given) for given in moved)]


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
