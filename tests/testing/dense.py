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

__all__ = ["as_dtype", "dense_attention", "dense_weights"]


def dense_attention(
    layer: RelativeAttention, x: Float[Tensor, "batch channels *spatial"], formula: Formula, *, backwards: bool = False
) -> Float[Tensor, "batch outputs *out"]:
    """Computes a layer by its definition, y[q] = b + Σ_h W_h Σ_k A_h[q, k] x[k], in the dtype of x.

    Only parameters and arguments of the layer are read. `backwards` sums from the last term to the first, which rounds
    differently.
    """
    keys, _, queries = _grids(layer, x)
    weights = dense_weights(layer, x, formula, backwards=backwards).to(x.dtype)
    weights = weights.flatten(2 + layer.dims).flatten(2, 1 + layer.dims)
    maps, pixels, order = _block_diagonal(layer), keys.flatten(2), -1 if backwards else 1
    weights, pixels = _ordered(weights, order), _ordered(pixels, order)
    heads = list(zip(weights.unbind(1), maps, strict=True))
    terms = [(weight @ pixels.mT) @ matrix.mT for weight, matrix in heads[::order]]
    y = sum(terms[1:], terms[0]).mT
    y = y if layer.bias is None else y + layer.bias[:, None]
    return y.unflatten(-1, [len({query[axis] for query in queries}) for axis in range(len(queries[0]))])


def dense_weights(
    layer: RelativeAttention, x: Float[Tensor, "batch channels *spatial"], formula: Formula, *, backwards: bool = False
) -> Float[Tensor, "batch heads *queries_keys"]:
    """Computes attention weights by their definition, in at least float32: (batch, heads, *out, *keys).

    The arguments are those of `dense_attention`.
    """
    keys, places, queries = _grids(layer, x)
    kind = torch.promote_types(x.dtype, torch.float32)
    order = -1 if backwards else 1
    displacements = torch.tensor(places, dtype=kind) - torch.tensor(queries, dtype=kind)[:, None]
    position, features = _position_terms(layer, displacements, formula, one_by_one=backwards)
    if layer.content is None:
        weights = _softmax(position, order).expand(len(x), -1, -1, -1)
    else:
        content = _content_scores(layer, keys, [places.index(query) for query in queries], features, kind, order)
        if layer.gate is None:
            weights = _softmax(content + position, order)
        else:
            share = _position_share(layer, kind)
            weights = (1 - share) * _softmax(content, order) + share * _softmax(position, order)
    sizes = [[len({point[axis] for point in points}) for axis in range(layer.dims)] for points in (queries, places)]
    return weights.unflatten(-1, sizes[1]).unflatten(2, sizes[0])


def as_dtype(layer: RelativeAttention, dtype: torch.dtype, encoding: torch.dtype | None = None) -> RelativeAttention:
    """Copies a layer into a dtype, and its encoding into another one if given."""
    made = copy.deepcopy(layer).to(dtype)
    if encoding is not None:
        made.encoding = copy.deepcopy(layer.encoding).to(encoding)
    return made


def _grids(layer: RelativeAttention, x: Tensor) -> tuple[Tensor, list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Returns the key image, the places of the keys and those of the queries, from the layer's arguments."""
    options = layer.options()
    indices, queries = [], []
    for axis, size in enumerate(x.shape[2:]):
        step, kernel, dilation = (options[n][axis] for n in ("input_dilation", "kernel_size", "dilation"))
        index = key_index(size, tuple(options["padding"][axis]), options["padding_mode"], step)
        first = dilation * ((kernel - 1) // 2)
        last = len(index) - 1 - dilation * (kernel - 1) + first
        indices.append(index)
        queries.append([q for q in range(first, last + 1) if (q - first) % options["stride"][axis] == 0])
    keys = take_keys(x, indices)
    return keys, list(product(*map(range, keys.shape[2:]))), list(product(*queries))


def _softmax(scores: Tensor, order: int) -> Tensor:
    exponentials = torch.exp(scores - scores.max(-1, keepdim=True).values)
    return exponentials / _ordered(exponentials, order).sum(-1, keepdim=True)


def _ordered(terms: Tensor, order: int) -> Tensor:
    """Returns the terms of a sum along the last axis in their order (1), or from the last to the first (-1)."""
    return terms.flip(-1) if order < 0 else terms


def _position_share(layer: RelativeAttention, kind: torch.dtype) -> Float[Tensor, "heads 1 1"]:
    """Computes σ(λ), or 1 − tanh(g) as 2 / (1 + e^{2g})."""
    assert layer.gate is not None
    gate = layer.gate.to(kind)[:, None, None]
    return 1 / (1 + torch.exp(-gate)) if layer.options()["gate"] == "sigmoid" else 2 / (1 + torch.exp(2 * gate))


def _position_terms(
    layer: RelativeAttention, displacements: Float[Tensor, "queries keys dims"], formula: Formula, *, one_by_one: bool
) -> tuple[Float[Tensor, "heads queries keys"], Float[Tensor, "queries keys width"] | None]:
    """Scores all pairs, and takes their features where content asks; one query after another, or all at once."""
    groups = displacements.split(1 if one_by_one else len(displacements))
    shapes = [group.shape[:2] for group in groups]
    flat = [group.flatten(0, 1) for group in groups]
    scores = [formula.score(layer.encoding, g).unflatten(1, s) for g, s in zip(flat, shapes, strict=True)]
    if layer.content is None or not layer.content.uses_position or formula.features is None:
        return torch.cat(scores, dim=1), None
    features = [formula.features(layer.encoding, g).unflatten(0, s) for g, s in zip(flat, shapes, strict=True)]
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
        score = q @ k.mT
        if maps.content_bias is not None:
            score = score + (k @ _ordered(maps.content_bias[head].to(kind), order))[:, None]
        if features is not None:
            projected = features if maps.position is None else features @ maps.position[head].to(kind).mT
            score = score + torch.einsum("bqw,qkw->bqk", q, _ordered(projected, order))
        heads.append(score / width**0.5)
    return torch.stack(heads, dim=1)


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
            pairs = zip(parameters["output"][head].chunk(groups), parameters["value"][head].chunk(groups), strict=True)
            blocks = [output @ value for output, value in pairs]
        matrices.append(torch.block_diag(*blocks))
    return matrices
