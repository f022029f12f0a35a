"""Attention by its definition, one query after another: a second road to what the layers compute."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings import Encoding
from convattn.layers import RelativeAttention
from convattn.testing.keys import key_index, take_keys

__all__ = ["Formula", "as_dtype", "dense_attention", "dense_weights"]


@dataclass(frozen=True)
class Formula:
    """An encoding's equations, written independently of the encoding; it holds the parameters only.

    Attributes:
        score: (encoding, displacements (points, dims)) → scores (heads, points), in the displacements' dtype.
        features: (encoding, displacements (points, dims)) → features (points, width); None where there are none.
    """

    score: Callable[[Encoding, Tensor], Tensor]
    features: Callable[[Encoding, Tensor], Tensor] | None = None


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
    if backwards:
        weights, pixels = weights.flip(-1), pixels.flip(-1)
    columns = []
    for row in weights.unbind(2):
        heads = list(zip(row.unbind(1), maps, strict=True))
        terms = [(pixels @ weight[:, :, None]).squeeze(-1) @ matrix.mT for weight, matrix in heads[::order]]
        columns.append(sum(terms[1:], terms[0]))
    y = torch.stack(columns, dim=-1)
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
    scores, features = _position_terms(layer, displacements, formula, one_by_one=backwards)
    rows, positions = [], scores.unbind(1)
    for number in range(len(queries))[::order]:
        position = positions[number]
        if layer.content is None:
            rows.append(_softmax(position, order).expand(len(x), -1, -1))
            continue
        seen = None if features is None else features[number]
        content = _content_scores(layer, keys, places.index(queries[number]), seen, kind)
        if layer.gate is None:
            rows.append(_softmax(content + position, order))
        else:
            share = _position_share(layer, kind)
            rows.append((1 - share) * _softmax(content, order) + share * _softmax(position, order))
    weights = torch.stack(rows[::order], dim=2)
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
    summed = exponentials.flip(-1) if order < 0 else exponentials
    return exponentials / summed.sum(-1, keepdim=True)


def _position_share(layer: RelativeAttention, kind: torch.dtype) -> Float[Tensor, "heads 1"]:
    """Computes σ(λ), or 1 − tanh(g) as 2 / (1 + e^{2g})."""
    assert layer.gate is not None
    gate = layer.gate.to(kind)[:, None]
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
    layer: RelativeAttention, keys: Tensor, query: int, features: Tensor | None, kind: torch.dtype
) -> Float[Tensor, "batch heads keys"]:
    """Adds the terms of the relative score that depend on the input, one head after another (Dai et al. 2019, §3.3)."""
    assert layer.content is not None
    maps, pixels = layer.content, keys.flatten(2).mT
    width = maps.query.out_features // layer.num_heads
    asked, offered = maps.query(pixels[:, query]).to(kind), maps.key(pixels).to(kind)
    heads = []
    for head in range(layer.num_heads):
        part = slice(head * width, (head + 1) * width)
        q, k = asked[:, part], offered[..., part]
        score = (k @ q[:, :, None]).squeeze(-1)
        if maps.content_bias is not None:
            score = score + k @ maps.content_bias[head].to(kind)
        if features is not None:
            projected = features if maps.position is None else features @ maps.position[head].to(kind).mT
            score = score + q @ projected.mT
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
