"""The encodings' equations, written out head by head, and ways to make each encoding small."""

import torch
from torch import Tensor

from convattn.encodings import create_encoding
from convattn.testing.contracts import Formula


def quadratic(encoding, displacement: Tensor) -> Tensor:
    kind = displacement.dtype
    return torch.stack(
        [
            -(root.to(kind) ** 2) / 2 * ((displacement - centre.to(kind)) ** 2).sum(-1)
            for centre, root in zip(encoding.centres, encoding.root_sharpness, strict=True)
        ]
    )


def squares_and_shifts(encoding, displacement: Tensor) -> Tensor:
    return torch.stack([(displacement**2).sum(-1), *displacement.unbind(-1)], dim=-1)


def generalized_quadratic(encoding, displacement: Tensor) -> Tensor:
    kind, scores = displacement.dtype, []
    for centre, shape in zip(encoding.centres, encoding.shape, strict=True):
        offset = (displacement - centre.to(kind)).unbind(-1)
        rows = [
            sum(entry * part for entry, part in zip(row.to(kind), offset, strict=True))
            for row in shape
        ]
        scores.append(-sum(row**2 for row in rows) / 2)
    return torch.stack(scores)


def monomials(encoding, displacement: Tensor) -> Tensor:
    axes = displacement.unbind(-1)
    return torch.stack([a * b for i, a in enumerate(axes) for b in axes[i:]] + list(axes), dim=-1)


def hats(displacement: Tensor, entries: int) -> Tensor:
    """Weights of interpolation between the whole pixels −(E − 1), …, E − 1: one triangle around each."""
    pixels = torch.arange(entries) - entries // 2
    return (1 - (displacement[:, None] - pixels).abs()).clamp(min=0)


def axis_vectors(encoding, displacement: Tensor) -> Tensor:
    return torch.cat(
        [
            hats(displacement[:, axis], len(table)) @ table.to(displacement.dtype)
            for axis, table in enumerate(encoding.tables)
        ],
        dim=-1,
    )


def learned_axial(encoding, displacement: Tensor) -> Tensor:
    if encoding.head_vectors is None:
        return displacement.new_zeros(encoding.num_heads, len(displacement))
    vectors = encoding.head_vectors.to(displacement.dtype).transpose(0, 1).flatten(1)
    return vectors @ axis_vectors(encoding, displacement).mT


def learned_table(encoding, displacement: Tensor) -> Tensor:
    scores = encoding.scores.to(displacement.dtype)[:, None].expand(
        -1, len(displacement), *encoding.scores.shape[1:]
    )
    for axis in reversed(range(displacement.shape[-1])):
        weights = hats(displacement[:, axis], scores.shape[-1])
        scores = (scores * weights.view(1, len(weights), *(1,) * (scores.ndim - 3), -1)).sum(-1)
    return scores


def waves(encoding, displacement: Tensor) -> Tensor:
    count, columns = encoding.frequencies, []
    for axis in displacement.unbind(-1):
        phases = [axis * encoding.max_period ** (-i / count) for i in range(count)]
        columns += [torch.sin(phase) for phase in phases] + [torch.cos(phase) for phase in phases]
    return torch.stack(columns, dim=-1)


def sinusoidal(encoding, displacement: Tensor) -> Tensor:
    weights = torch.cat(list(encoding.head_vectors.to(displacement.dtype)), dim=-1)
    return weights @ waves(encoding, displacement).mT


def hidden_units(encoding, displacement: Tensor) -> Tensor:
    logs = torch.where(displacement < 0, -1.0, 1.0) * torch.log(1 + displacement.abs())
    inner = logs @ encoding.inner.weight.to(logs.dtype).mT + encoding.inner.bias.to(logs.dtype)
    return torch.where(inner > 0, inner, 0.0)


def distance(encoding, displacement: Tensor) -> Tensor:
    return encoding.outer.weight.to(displacement.dtype) @ hidden_units(encoding, displacement).mT


def axis_units(encoding, displacement: Tensor) -> Tensor:
    return torch.cat(
        [hidden_units(part, displacement[:, a, None]) for a, part in enumerate(encoding.axes)],
        dim=-1,
    )


def axial_distance(encoding, displacement: Tensor) -> Tensor:
    weights = torch.cat([part.outer.weight for part in encoding.axes], dim=-1).to(
        displacement.dtype
    )
    return weights @ axis_units(encoding, displacement).mT


def linear_distance(encoding, displacement: Tensor) -> Tensor:
    kind = displacement.dtype
    return torch.stack(
        [
            -torch.exp(log_slope.to(kind)) * (displacement - centre.to(kind)).abs().sum(-1)
            for centre, log_slope in zip(encoding.centres, encoding.log_slope, strict=True)
        ]
    )


def shift(encoding, displacement: Tensor) -> Tensor:
    centres = torch.tensor(encoding.displacements, dtype=displacement.dtype)
    return torch.stack([-800 * ((displacement - centre) ** 2).sum(-1) for centre in centres])


FORMULAS = {
    "quadratic": Formula(quadratic, squares_and_shifts),
    "generalized_quadratic": Formula(generalized_quadratic, monomials),
    "learned_axial": Formula(learned_axial, axis_vectors),
    "learned_table": Formula(learned_table),
    "sinusoidal": Formula(sinusoidal, waves),
    "distance": Formula(distance, hidden_units),
    "axial_distance": Formula(axial_distance, axis_units),
    "linear_distance": Formula(linear_distance),
    "shift": Formula(shift, squares_and_shifts),
}

SMALL = {
    "learned_axial": {"extent": 16, "width": 5},
    "learned_table": {"extent": 16},
    "sinusoidal": {"frequencies": 3},
    "distance": {"hidden": 7},
    "axial_distance": {"hidden": 7},
}
"""Options that keep an encoding small; the extent serves every grid of the tests."""


def small_encoding(name: str, num_heads: int, dims: int, **options):
    if name == "shift" and not options:
        options = {
            "displacements": [
                [(head + axis) % 3 - 1 for axis in range(dims)] for head in range(num_heads)
            ]
        }
    return create_encoding(name, num_heads, dims, **{**SMALL.get(name, {}), **options})
