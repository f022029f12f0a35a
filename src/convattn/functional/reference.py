"""The definition of attention with which every other path is compared: key images, scores, softmax, means, heads.

Written to be read, with all N × N weights in memory. Notation and signs follow `docs/explanation/theory.md`.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from einops import einsum
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from convattn.encodings import AxisAdditiveEncoding, Encoding
from convattn.encodings.encoding import compute_parameters
from convattn.errors import require_name
from convattn.functional.torch_modes import (
    at_least_float32,
    is_accelerator,
    needs_own_operations,
    without_autocast,
)
from convattn.grid import Axis, Geometry


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
    if geometry.padding_mode in ("reflect", "circular"):
        for number, size in enumerate(x.shape[2:]):
            geometry.require_padding(number, size)
    flat = tuple(max(pixels, 0) for pair in reversed(geometry.padding) for pixels in pair)
    mode = geometry.padding_mode.replace("zeros", "constant")
    padded = functional.pad(x, flat, mode)
    for dim, (before, after) in enumerate(geometry.padding, start=2):
        cut = slice(max(-before, 0), padded.shape[dim] + min(after, 0))
        padded = padded[(slice(None),) * dim + (cut,)]
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
    return keys[(..., *query_slices(axes))]


def query_slices(axes: Sequence[Axis]) -> list[slice]:
    """Returns where the queries stand along each axis."""
    queries = [axis.queries for axis in axes]
    return [slice(along.start, along.stop, along.step) for along in queries]


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
    learns = table.requires_grad or torch._C._is_tracing()
    if not learns or is_accelerator(table.device):
        return _windows(table, axes)
    # on a CPU the gradient by numbers of places takes a quarter of the time of that by windows (32 x 32)
    places = displacement_places(axes, device=table.device)
    return table.flatten(1).index_select(1, places.flatten()).unflatten(1, places.shape)


def _windows(
    table: Float[Tensor, "heads *displacements"], axes: Sequence[Axis]
) -> Float[Tensor, "heads queries keys"]:
    """Looks scores up in one kernel, whose gradient sums windows in the same order each time."""
    windows = table
    for dim, axis in enumerate(axes, start=1):
        windows = windows.unfold(dim, axis.keys, axis.queries.step)
    dims = len(axes)
    return windows.flip(tuple(range(1, 1 + dims))).flatten(1, dims).flatten(2)


def displacement_places(
    axes: Sequence[Axis],
    some: slice | Int[Tensor, " queries"] = slice(None),
    device: torch.device | None = None,
) -> Int[Tensor, "queries keys"]:
    """Returns where the displacements from some queries to every key are in a flattened table of all displacements.

    Args:
        axes: Queries and keys along each axis.
        some: Which queries, in row-major order.
        device: Where the places are wanted.

    Returns:
        Places in the table of `Encoding.table`, flattened.
    """
    # a place is a number of the key less one of the query
    of_queries = of_keys = torch.zeros(1, dtype=torch.int64, device=device)
    for axis in axes:
        own = axis.queries
        queries = torch.arange(own.start, own.stop, own.step, device=device) + axis.lowest
        keys = torch.arange(axis.keys, device=device)
        of_queries = (axis.span * of_queries[:, None] + queries).flatten()
        of_keys = (axis.span * of_keys[:, None] + keys).flatten()
    return of_keys - of_queries[some][:, None]


def places_along(
    axes: Sequence[Axis], some: slice = slice(None), device: torch.device | None = None
) -> list[Int[Tensor, "queries keys"]]:
    """Returns, for each axis alone, where displacements from some queries of all axes are in its table."""
    sizes = [len(axis.queries) for axis in axes]
    numbers = torch.arange(math.prod(sizes), device=device)[some]
    places = []
    for number, axis in enumerate(axes):
        along = numbers // math.prod(sizes[number + 1 :]) % sizes[number]
        places.append(displacement_places((axis,), along, device))
    return places


def scores_of_features(
    query: Float[Tensor, "images heads queries width"],
    features: Float[Tensor, "heads_or_one displacements width"],
    places: Int[Tensor, "queries keys"],
) -> Float[Tensor, "images heads queries keys"]:
    """Computes q·r_δ for every displacement, and looks those of each query up."""
    seen = query @ features.mT
    return seen.gather(-1, places.expand(*seen.shape[:-2], -1, -1))


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
    return torch.softmax(scores, dim=-1, dtype=at_least_float32(scores.dtype))


def position_weights(
    table: Float[Tensor, "heads *displacements"], axes: Sequence[Axis]
) -> Float[Tensor, "heads queries keys"]:
    """Takes the softmax of position scores, without weights whose products are subnormal (`normal_weights`).

    Args:
        table: Scores of all displacements of `axes`, from the lowest to the highest along each axis.
        axes: Queries and keys along each axis.

    Returns:
        Weights that sum to one over the keys, in at least float32.

    Example:
        >>> position_weights(torch.tensor([[0.0, -60.0]]), [Axis(range(1), 2)]).tolist()
        [[[1.0, 0.0]]]
    """
    return normal_weights(displacement_scores(table, axes))


_LOW = -1024.0
"""Scores of a query below which they are raised."""


def raised(scores: Float[Tensor, "*many keys"]) -> Float[Tensor, "*many keys"]:
    """Raises a query's scores, of which the softmax drops what they have in common, if all are far below 0.

    Else 16 bits would hold none of a head that looks beyond the grid, and it would look everywhere alike.
    """
    top = scores.detach().amax(-1, keepdim=True)
    return scores - torch.where(top < _LOW, top, 0)


def normal_weights(
    scores: Float[Tensor, "*batch queries keys"],
    *,
    owned: bool = False,
) -> Float[Tensor, "*batch queries keys"]:
    """Normalises scores as `attention_weights`, with zero for weights below the root of the smallest normal number.

    Products of smaller ones are subnormal, and processors multiply subnormal numbers far more slowly. In float32 the
    root is 1e-19. What is left out is smaller than the row's largest weight by that root times the number of keys, far
    below rounding. No number on the way is subnormal, nor in the gradient.

    Args:
        scores: Scores in at least float32.
        owned: Whether the scores may be overwritten.

    Returns:
        Weights that sum to one over the keys.

    Example:
        >>> normal_weights(torch.tensor([[-90.0, 0.0], [-90.0, -90.0]])).tolist()
        [[0.0, 1.0], [0.5, 0.5]]
    """
    # on a GPU each operation costs a start, and subnormal numbers cost nothing
    if is_accelerator(scores.device):
        return attention_weights(scores)
    # no row of weights sums to more than its number of keys before it is normalised
    least = math.log(torch.finfo(scores.dtype).tiny) / 2 + math.log(scores.shape[-1])
    highest = scores.detach().amax(-1, keepdim=True)
    lowered = scores.sub_(highest) if owned else scores - highest
    torch.threshold_(lowered, least, -math.inf)
    is_kept = not owned or torch.is_grad_enabled() or needs_own_operations(lowered)
    return torch.softmax(lowered, dim=-1, out=None if is_kept else lowered)


def join_axes(weights: Sequence[Float[Tensor, "heads _ _"]]) -> Float[Tensor, "heads queries keys"]:
    """Multiplies the weights along each axis to those of every query and key: A = A_1 ⊗ … ⊗ A_n.

    Args:
        weights: For each axis, (heads, queries, keys).

    Returns:
        Weights; queries and keys are flattened in row-major order.
    """
    whole = weights[0]
    for weight in weights[1:]:
        outer = whole[:, :, None, :, None] * weight[:, None, :, None, :]
        whole = outer.flatten(3).flatten(1, 2)
    return whole


@runtime_checkable
class ContentTerms(Protocol):
    """The parameters of the terms of a score that depend on the images."""

    num_heads: int
    key_width: int  # width of queries and keys
    uses_position: bool  # whether there is a content–position term q·Ŵr_δ
    query: nn.Linear  # W_q of all heads
    key: nn.Linear  # W_k of all heads
    position: Tensor | None  # Ŵ, (heads, key_width, features); None uses features as they are
    content_bias: Tensor | None  # u, (heads, key_width), or None


def queries_and_keys(
    content: ContentTerms,
    keys: Float[Tensor, "images channels *keys"],
    axes: Sequence[Axis],
) -> tuple[
    Float[Tensor, "images heads queries_flat width"], Float[Tensor, "images heads keys_flat width"]
]:
    """Returns queries W_q x and keys W_k x of every image; refuses hooks on what holds both, which is not called."""
    assert isinstance(content, nn.Module)
    compute_parameters(content)
    both = []
    for linear, pixels in ((content.query, query_pixels(keys, axes)), (content.key, keys)):
        # side by side in memory, or torch adds a bias apart, and rounds twice
        mapped = linear(pixels.movedim(1, -1).flatten(1, -2))
        both.append(mapped.unflatten(2, (content.num_heads, -1)).transpose(1, 2))
    return both[0], both[1]


def position_features(
    content: ContentTerms,
    encoding: Encoding,
    axes: Sequence[Axis],
    like: Tensor,
    *,
    by_axis: bool,
) -> list[Float[Tensor, "heads_or_one _ width"]]:
    """Returns Ŵr_δ of displacements along each axis or of all, in the dtype of a tensor; nothing without the term."""
    if not content.uses_position:
        return []
    if by_axis:
        assert isinstance(encoding, AxisAdditiveEncoding)
        tables = encoding.axis_features(axes, like.dtype, like.device)
    else:
        tables = [encoding.grid_features(axes, like.dtype, like.device)]
    if content.position is None:
        return [table[None] for table in tables]
    # torch.matmul would sum in another order without gradients
    pattern = "heads width features, displacements features -> heads displacements width"
    matrices = content.position.to(like.dtype)
    return [einsum(matrices, table, pattern) for table in tables]


def scores_of_images(
    content: ContentTerms,
    encoding: Encoding,
    keys: Float[Tensor, "images channels *keys"],
    axes: Sequence[Axis],
) -> Float[Tensor, "images heads queries_flat keys_flat"]:
    """Scores every query and key of every image in at least float32, without the encoding's own score."""
    query, key = queries_and_keys(content, keys, axes)
    with without_autocast(keys.device):
        position = None
        for table in position_features(content, encoding, axes, _widened(query), by_axis=False):
            position = table[:, displacement_places(axes, device=keys.device)]
        return content_scores(query, key, position, content.content_bias)


def content_scores(
    query: Float[Tensor, "images heads queries width"],
    key: Float[Tensor, "images heads keys width"],
    position: Float[Tensor, "heads_or_one queries keys width"] | None = None,
    content_bias: Float[Tensor, "heads width"] | None = None,
) -> Float[Tensor, "images heads queries keys"]:
    """Computes the terms of the relative score that depend on the input.

    `s = ((q + u)·k + q·r_δ) / √width`: content–content, content bias and content–position. The fourth term, the
    position bias v·r_δ, is the encoding's own score, which the caller adds (docs/explanation/theory.md §6;
    Transformer-XL, Dai et al. 2019, §3.3).

    Args:
        query: q = W_q x at the queries.
        key: k = W_k x at the keys.
        position: r_δ (projected to the heads' width, or shared by all heads); None leaves content–position out.
        content_bias: u per head; None leaves the content bias out.

    Returns:
        Scores in at least float32.
    """
    query = _widened(query)
    key = _widened(key)
    biased = query if content_bias is None else query + content_bias.to(query.dtype)[:, None]
    scores = biased @ key.mT
    if position is not None:
        position = position.to(query.dtype).expand(query.shape[1], -1, -1, -1)
        scores = scores + einsum(
            query,
            position,
            "images heads queries width, heads queries keys width -> images heads queries keys",
        )
    return scores * query.shape[-1] ** -0.5


def gated_weights(
    content: Float[Tensor, "images heads queries keys"],
    position: Float[Tensor, "heads queries keys"],
    share: Float[Tensor, " heads"],
) -> Float[Tensor, "images heads queries keys"]:
    """Mixes two attention distributions: A = (1 − s) · content + s · position.

    Args:
        content: Weights from content scores.
        position: Weights from displacement scores.
        share: s per head, the share of position; 1 leaves position alone.

    Returns:
        Weights that sum to one over the keys (d'Ascoli et al. 2021, ConViT, eq. 6); with s above 1 some are negative.
    """
    share = share.to(content.dtype)[:, None, None]
    return (1 - share) * content + share * position


def position_share(
    gate: Float[Tensor, " heads"], kind: Literal["sigmoid", "tanh"]
) -> Float[Tensor, " heads"]:
    """Computes the share of position from a gate: s = σ(λ), or s = 1 − tanh(g).

    σ reaches 1 only by rounding, where it has no gradient. 1 − tanh(g) is exactly 1 at g = 0, with the slope −1: such a
    gate can start closed on content, and open.

    Args:
        gate: λ or g per head.
        kind: Which of the two.

    Returns:
        The share, in at least float32: in (0, 1), or in (0, 2) of a tanh.

    Raises:
        UnknownNameError: `kind` is neither of the two.

    Example:
        >>> position_share(torch.tensor([0.0, 20.0]), "tanh").tolist()
        [1.0, 0.0]
    """
    require_name("kind", kind, ("sigmoid", "tanh"))
    gate = _widened(gate)
    return torch.sigmoid(gate) if kind == "sigmoid" else 1 - torch.tanh(gate)


def _widened(x: Tensor) -> Tensor:
    return x.to(at_least_float32(x.dtype))


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
    pattern += ", images channels keys -> images heads channels queries"
    mixed = einsum(weights, keys.flatten(2), pattern)
    return combine_heads(mixed, maps, groups)


class HeadMaps(NamedTuple):
    """The heads' matrices W_h, whole or as products of two narrow ones."""

    value: Float[Tensor, "heads inner channels_per_group"]  # W_val, or W_h itself
    output: Float[Tensor, "heads outputs inner_per_group"] | None  # W_out; None if `value` is W_h
    groups: int  # blocks of each W_h

    def weighted(self, factors: Float[Tensor, " heads"]) -> "HeadMaps":
        """Multiplies each head's matrix by a number."""
        numbers = factors.to(self.value.dtype)[:, None, None]
        return self._replace(value=numbers * self.value)

    def values(
        self, keys: Float[Tensor, "batch channels *spatial"]
    ) -> Float[Tensor, "batch heads keys inner"]:
        """Returns W_val x, or W_h x, at every key."""
        pixels = keys.flatten(2).unflatten(1, (self.groups, -1))
        blocks = self.value.unflatten(1, (self.groups, -1))
        pattern = "batch groups channels keys, heads groups inner channels"
        values = einsum(pixels, blocks, f"{pattern} -> batch heads keys groups inner")
        return values.flatten(3)

    def combine(
        self, means: Float[Tensor, "batch heads inner *queries"], *, values_first: bool = True
    ) -> Float[Tensor, "batch outputs *queries"]:
        """Sums means of `values`, or of pixels, over heads, after the matrices that are left."""
        if not values_first:
            return combine_heads(means, self.whole(), self.groups)
        if self.output is not None:
            return combine_heads(means, self.output, self.groups)
        return means.sum(1, dtype=at_least_float32(means.dtype)).to(means.dtype)

    def whole(self) -> Float[Tensor, "heads outputs channels_per_group"]:
        """Returns W_h = W_out^(h) W_val^(h), group by group."""
        if self.output is None:
            return self.value
        output, value = (one.unflatten(1, (self.groups, -1)) for one in (self.output, self.value))
        return (output @ value).flatten(1, 2)


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
    # einsum, because exporters fix a batch of one image where axes of a product are merged
    pattern = "heads batch groups channels queries, heads groups outputs channels"
    combined = einsum(
        mixed.transpose(0, 1).flatten(3).unflatten(2, (groups, -1)),
        maps.unflatten(1, (groups, -1)),
        f"{pattern} -> batch groups outputs queries",
    )
    return combined.reshape(mixed.shape[0], maps.shape[1], *mixed.shape[3:])


def add_bias(
    y: Float[Tensor, "batch outputs *queries"], bias: Float[Tensor, " outputs"] | None
) -> Float[Tensor, "batch outputs *queries"]:
    """Adds b to the outputs of every query, in the dtype of the outputs."""
    if bias is None:
        return y
    return y + bias.to(y.dtype).view(-1, *(1,) * (y.ndim - 2))


def attend_by_axis(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "images channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
) -> Float[Tensor, "images outputs *queries"]:
    """Computes `attend` with weights A_h = A_h,1 ⊗ … ⊗ A_h,n, by means along one axis after the other.

    Args:
        weights: For each axis, (heads, queries, keys), in the dtype of the keys.
        keys: Key images with as many axes.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.

    Returns:
        Output channels at each query.
    """
    # with more outputs than queries, gradients of the matrices by image would be more numbers than its means
    queries = [weight.shape[1] for weight in weights]
    if groups > 1 or len(weights) == 1 or maps.shape[1] > math.prod(queries):
        return combine_heads(means_by_axis(weights, keys).transpose(0, 1), maps, groups)
    # with images third, those of an image are one matrix after the last axis
    means = means_by_axis(weights, keys.transpose(0, 1))
    pixels = means.flatten(3).flatten(0, 1).transpose(0, 1)
    matrices = maps.transpose(0, 1).flatten(1).expand(keys.shape[0], -1, -1)
    return torch.bmm(matrices, pixels).unflatten(2, means.shape[3:])


def means_by_axis(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    pixels: Float[Tensor, "..."],
) -> Float[Tensor, "heads first second *queries"]:
    """Takes weighted means along one axis after the other, of the same pixels for all heads or of each head's own.

    Images and channels come before those axes, in any order.
    """
    axes = len(weights)
    for weight in weights:
        # each axis goes to the end, where its queries take its place, so that in the end they are in order
        moved = pixels.movedim(-axes, -1)
        if pixels.ndim == 2 + axes:
            means = functional.linear(moved.flatten(0, -2), weight.flatten(0, 1))
            pixels = means.view(*moved.shape[:-1], *weight.shape[:2]).movedim(-2, 0)
        else:
            means = moved.flatten(1, -2) @ weight.mT
            pixels = means.unflatten(1, moved.shape[1:-1])
    return pixels
