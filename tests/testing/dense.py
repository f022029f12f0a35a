"""Attention by its definition, over all pairs of query and key: a second road to what the layers compute."""

import copy
from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float
from tests.testing.keys import key_index, take_keys
from torch import Tensor

from convattn.layers import RelativeAttention
from convattn.testing.contracts import Formula

__all__ = ["as_dtype", "dense_attention", "dense_scores", "dense_weights"]

Grids = tuple[Tensor, list[tuple[int, ...]], list[tuple[int, ...]]]
"""The key image, the places of its keys, and those of the queries."""


def dense_attention(
    layer: RelativeAttention,
    x: Float[Tensor, "batch channels *spatial"],
    formula: Formula,
    *,
    backwards: bool = False,
) -> Float[Tensor, "batch outputs *out"]:
    """Computes a layer by its definition, y[q] = b + Σ_h W_h Σ_k A_h[q, k] x[k], in the dtype of x.

    Only parameters and arguments of the layer are read. `backwards` sums from the last term to the first. Where the
    weights are those of positions alone, and not rounded to fewer bits, it divides by the sum of the exponentials last.
    Both round differently.
    """
    grids = _grids(layer, x)
    keys, _, queries = grids
    position, content = _scores(layer, x, formula, grids, backwards=backwards)
    if backwards and content is None and position.dtype == x.dtype:
        weights = _exponentials(position)[None]
        totals = weights.sum(-1, keepdim=True)
    else:
        weights = _weights(layer, position, content, backwards=backwards).to(x.dtype)
        totals = torch.ones_like(weights[..., :1])
    maps, pixels, order = _block_diagonal(layer), keys.flatten(2), -1 if backwards else 1
    weights, pixels = _ordered(weights, order), _ordered(pixels, order)
    heads = list(zip(weights.unbind(1), totals.unbind(1), maps, strict=True))
    terms = [((weight @ pixels.mT) / total) @ matrix.mT for weight, total, matrix in heads[::order]]
    y = sum(terms[1:], terms[0]).mT
    y = y if layer.bias is None else y + layer.bias[:, None]
    return y.unflatten(
        -1, [len({query[axis] for query in queries}) for axis in range(len(queries[0]))]
    )


def dense_weights(
    layer: RelativeAttention,
    x: Float[Tensor, "batch channels *spatial"],
    formula: Formula,
    *,
    backwards: bool = False,
) -> Float[Tensor, "batch heads *queries_keys"]:
    """Computes attention weights by their definition, in at least float32: (batch, heads, *out, *keys).

    The arguments are those of `dense_attention`.
    """
    grids = _grids(layer, x)
    _, places, queries = grids
    scores = _scores(layer, x, formula, grids, backwards=backwards)
    weights = _weights(layer, *scores, backwards=backwards)
    sizes = [
        [len({point[axis] for point in points}) for axis in range(layer.dims)]
        for points in (queries, places)
    ]
    return weights.expand(len(x), -1, -1, -1).unflatten(-1, sizes[1]).unflatten(2, sizes[0])


def dense_scores(
    layer: RelativeAttention,
    x: Float[Tensor, "batch channels *spatial"],
    formula: Formula,
    *,
    backwards: bool = False,
) -> tuple[Float[Tensor, "heads queries keys"], Float[Tensor, "batch heads queries keys"] | None]:
    """Computes the scores of positions and those of content, in at least float32.

    The arguments are those of `dense_attention`.
    """
    return _scores(layer, x, formula, _grids(layer, x), backwards=backwards)


def _scores(
    layer: RelativeAttention, x: Tensor, formula: Formula, grids: Grids, *, backwards: bool
) -> tuple[Float[Tensor, "heads queries keys"], Float[Tensor, "batch heads queries keys"] | None]:
    keys, places, queries = grids
    kind = torch.promote_types(x.dtype, torch.float32)
    displacements = torch.tensor(places, dtype=kind) - torch.tensor(queries, dtype=kind)[:, None]
    position, features = _position_terms(layer, displacements, formula, one_by_one=backwards)
    if layer.content is None:
        return position, None
    centres, order = [places.index(query) for query in queries], -1 if backwards else 1
    return position, _content_scores(layer, keys, centres, features, kind, order)


def as_dtype(
    layer: RelativeAttention, dtype: torch.dtype, encoding: torch.dtype | None = None
) -> RelativeAttention:
    """Copies a layer into a dtype, and its encoding into another one if given."""
    made = copy.deepcopy(layer).to(dtype)
    if encoding is not None:
        made.encoding = copy.deepcopy(layer.encoding).to(encoding)
    return made


def _grids(layer: RelativeAttention, x: Tensor) -> Grids:
    """Returns the key image, the places of the keys and those of the queries, from the layer's arguments."""
    options = layer.options()
    indices, queries = [], []
    for axis, size in enumerate(x.shape[2:]):
        step, kernel, dilation = (
            options[n][axis] for n in ("input_dilation", "kernel_size", "dilation")
        )
        index = key_index(size, tuple(options["padding"][axis]), options["padding_mode"], step)
        first = dilation * ((kernel - 1) // 2)
        last = len(index) - 1 - dilation * (kernel - 1) + first
        indices.append(index)
        queries.append(
            [q for q in range(first, last + 1) if (q - first) % options["stride"][axis] == 0]
        )
    keys = take_keys(x, indices)
    return keys, list(product(*map(range, keys.shape[2:]))), list(product(*queries))


def _weights(
    layer: RelativeAttention, position: Tensor, content: Tensor | None, *, backwards: bool
) -> Float[Tensor, "batch_or_one heads queries keys"]:
    order = -1 if backwards else 1
    if content is None:
        return _softmax(position, order)[None]
    if layer.gate is None:
        return _softmax(content + position, order)
    share = _position_share(layer, position.dtype)
    return (1 - share) * _softmax(content, order) + share * _softmax(position, order)


def _exponentials(scores: Tensor) -> Tensor:
    return torch.exp(scores - scores.detach().amax(-1, keepdim=True))


def _softmax(scores: Tensor, order: int) -> Tensor:
    exponentials = _exponentials(scores)
    return exponentials / _ordered(exponentials, order).sum(-1, keepdim=True)


def _ordered(terms: Tensor, order: int) -> Tensor:
    """Returns the terms of a sum along the last axis in their order (1), or from the last to the first (-1)."""
    return terms.flip(-1) if order < 0 else terms


def _position_share(layer: RelativeAttention, kind: torch.dtype) -> Float[Tensor, "heads 1 1"]:
    """Computes σ(λ), or 1 − tanh(g) as 2 / (1 + e^{2g})."""
    assert layer.gate is not None
    gate = layer.gate.to(kind)[:, None, None]
    return (
        1 / (1 + torch.exp(-gate))
        if layer.options()["gate"] == "sigmoid"
        else 2 / (1 + torch.exp(2 * gate))
    )


def _position_terms(
    layer: RelativeAttention,
    displacements: Float[Tensor, "queries keys dims"],
    formula: Formula,
    *,
    one_by_one: bool,
) -> tuple[Float[Tensor, "heads queries keys"], Float[Tensor, "queries keys width"] | None]:
    """Scores all pairs, and takes their features where content asks; one query after another, or all at once."""
    groups = displacements.split(1 if one_by_one else len(displacements))
    shapes = [group.shape[:2] for group in groups]
    flat = [group.flatten(0, 1) for group in groups]
    scores = [
        formula.score(layer.encoding, g).unflatten(1, s) for g, s in zip(flat, shapes, strict=True)
    ]
    if layer.content is None or not layer.content.uses_position or formula.features is None:
        return torch.cat(scores, dim=1), None
    features = [
        formula.features(layer.encoding, g).unflatten(0, s)
        for g, s in zip(flat, shapes, strict=True)
    ]
    return torch.cat(scores, dim=1), torch.cat(features)


def _content_scores(
    layer: RelativeAttention,
    keys: Tensor,
    queries: Sequence[int],
    features: Tensor | None,
    kind: torch.dtype,
    order: int,
) -> Float[Tensor, "batch heads queries keys"]:
    """Adds the terms of the relative score that depend on the input, one head after another (Dai et al. 2019, §3.3)."""
    assert layer.content is not None
    maps, pixels = layer.content, keys.flatten(2).mT
    width = maps.query.out_features // layer.num_heads
    asked, offered = maps.query(pixels[:, queries]).to(kind), maps.key(pixels).to(kind)
    heads = []
    for head in range(layer.num_heads):
        part = slice(head * width, (head + 1) * width)
        q, k = _ordered(asked[..., part], order), _ordered(offered[..., part], order)
        bias = 0 if maps.content_bias is None else _ordered(maps.content_bias[head].to(kind), order)
        score = (
            (q + bias) @ k.mT
            if order < 0 or maps.content_bias is None
            else q @ k.mT + (k @ bias)[:, None]
        )
        if features is not None:
            score = score + _feature_scores(asked[..., part], features, maps.position, head, order)
        heads.append(score / width**0.5)
    return torch.stack(heads, dim=1)


def _feature_scores(
    q: Float[Tensor, "batch queries width"],
    features: Float[Tensor, "queries keys features"],
    position: Tensor | None,
    head: int,
    order: int,
) -> Float[Tensor, "batch queries keys"]:
    """Multiplies queries, W_k,h and features; the order says which product is taken first."""
    if position is None:
        return torch.einsum("bqw,qkw->bqk", _ordered(q, order), _ordered(features, order))
    matrix = position[head].to(features.dtype)
    if order < 0:
        return torch.einsum("bqf,qkf->bqk", q @ matrix, features)
    return torch.einsum("bqw,qkw->bqk", q, features @ matrix.mT)


def _block_diagonal(layer: RelativeAttention) -> Sequence[Tensor]:
    """Returns W_h as whole matrices (outputs, inputs), with zeros outside the blocks of the groups."""
    parameters: dict[str, Tensor] = dict(layer.values.named_parameters())
    groups, matrices = layer.groups, []
    if layer.values.kernel_size is not None:  # the heads are the taps of a kernel
        parameters["weight"] = parameters["weight"].flatten(2).movedim(-1, 0)
    for head in range(layer.num_heads):
        if "weight" in parameters:
            blocks = parameters["weight"][head].chunk(groups)
        else:
            pairs = zip(
                parameters["output"][head].chunk(groups),
                parameters["value"][head].chunk(groups),
                strict=True,
            )
            blocks = [output @ value for output, value in pairs]
        matrices.append(torch.block_diag(*blocks))
    return matrices
