"""Every kind of attention layer, as a case: axes, encoding, path, values, content."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.encodings.formula_cases import FORMULAS, small_encoding
from tests.encodings.hard_numbers import HARD_NUMBERS, HARD_OPTIONS

from convattn.encodings import ENCODINGS, Quadratic
from convattn.layers import (
    Content,
    GatedRelativeAttention1d,
    GatedRelativeAttention2d,
    GatedRelativeAttention3d,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)
from convattn.testing.contracts import AttentionContract

HEADS = 2


@dataclass(frozen=True)
class LayerCase:
    """A layer: axes, encoding, further arguments, and numbers that parameters of the encoding are to hold."""

    encoding: str
    kind: type = RelativeAttention2d
    options: dict[str, Any] = field(default_factory=dict)
    encoding_options: dict[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, torch.Tensor] = field(default_factory=dict)
    heads: int = HEADS
    note: str = ""

    def __str__(self):
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        return " ".join(part for part in (self.kind.__name__, self.encoding, options, self.note) if part)

    def create(self, in_channels, out_channels, **options):
        encoding = small_encoding(self.encoding, self.heads, self.kind.dims, **self.encoding_options)
        return self.settle(self.kind(in_channels, out_channels, self.heads, encoding, **self.options, **options))

    def settle(self, layer):
        """Writes the numbers of the case into a layer."""
        with torch.no_grad():
            for name, numbers in self.numbers.items():
                layer.encoding.get_parameter(name).copy_(numbers)
        return layer


class CaseContract(AttentionContract):
    """The contract of the layers of a case."""

    case: LayerCase

    @property
    def formula(self):
        return FORMULAS[self.case.encoding]

    @property
    def dims(self):
        return self.case.kind.dims

    def create(self, in_channels, out_channels, **options):
        return self.case.create(in_channels, out_channels, **options)

    def made(self, *args, **options):
        """Makes a layer with random parameters, those apart whose numbers the case gives."""
        return self.case.settle(super().made(*args, **options))


ADDITIVE = [name for name, kind in ENCODINGS.items() if kind.axis_additive]


def hard(
    encoding: str, *centres: Sequence[int], kind: type = RelativeAttention2d, impl: str = "shift", **options: Any
) -> LayerCase:
    """Makes a case of heads that look at one pixel each, at whole displacements."""
    return LayerCase(
        encoding,
        kind,
        {**options, "impl": impl},
        {"displacements": centres} if encoding == "shift" else HARD_OPTIONS.get(encoding, {}),
        HARD_NUMBERS[encoding](torch.tensor(centres, dtype=torch.float32)),
        len(centres),
        f"at {' '.join(map(str, centres))}",
    )


HARD = [
    *(hard(name, (-1, 2), (0, -1)) for name in ADDITIVE),
    hard("quadratic", (-2,), (1,), kind=RelativeAttention1d),
    hard("quadratic", (0, -1, 1), (1, 0, -1), kind=RelativeAttention3d),
    hard("quadratic", (0, -1), (0, 2), impl="auto"),  # every tap of a dilated kernel
    hard("quadratic", (-1, 1), (9, 0), (-1, 1), head_width=2),  # two at one pixel, one beyond the border everywhere
]
"""Heads that look at one pixel each, which a convolution computes."""

LAYERS = [
    *(LayerCase(name, options={"impl": "reference"}) for name in ENCODINGS),
    *(LayerCase(name, options={"impl": "dense"}) for name in ENCODINGS),
    *(LayerCase(name, options={"impl": "separable"}) for name in ADDITIVE),
    *(LayerCase(name, options={"impl": "fourier"}) for name in ENCODINGS),
    *(
        LayerCase("quadratic", kind, {"impl": impl})
        for kind in (RelativeAttention1d, RelativeAttention3d)
        for impl in ("reference", "dense", "separable", "fourier")
    ),
    LayerCase("distance", RelativeAttention1d),
    LayerCase("generalized_quadratic", RelativeAttention3d),
    LayerCase("quadratic", options={"head_width": 2}),
    LayerCase("quadratic", options={"head_width": 2, "impl": "reference"}),
    LayerCase("learned_axial", options={"content": True}),
    LayerCase("sinusoidal", options={"content": Content(key_width=5, query_bias=True, key_bias=True)}),
    LayerCase("quadratic", options={"content": Content(key_width=3, project_position=False)}),
    LayerCase("learned_table", options={"content": Content(key_width=3, content_bias=False)}),
    LayerCase("distance", RelativeAttention1d, {"content": Content(position=False)}),
    LayerCase("learned_axial", RelativeAttention3d, {"content": True, "head_width": 1}),
    LayerCase("quadratic", GatedRelativeAttention2d),
    LayerCase("learned_axial", GatedRelativeAttention2d, {"content": Content(key_width=3)}),
    *(LayerCase(name, options={"content": Content(key_width=3), "impl": "content"}) for name in ENCODINGS),
    LayerCase("learned_axial", RelativeAttention3d, {"content": True, "head_width": 1, "impl": "content"}),
    LayerCase("distance", RelativeAttention1d, {"content": True, "impl": "content"}),
    LayerCase(
        "quadratic",
        options={"content": Content(key_width=3, project_position=False, query_bias=True), "impl": "content"},
    ),
    LayerCase("quadratic", GatedRelativeAttention2d, {"impl": "content"}),
    LayerCase("quadratic", GatedRelativeAttention2d, {"gate": "tanh"}),
    LayerCase("distance", GatedRelativeAttention1d, {"gate": "tanh", "head_width": 2}),
    LayerCase("quadratic", GatedRelativeAttention3d, {"gate": "tanh", "content": Content(key_width=3)}),
    LayerCase("distance", GatedRelativeAttention2d, {"content": Content(key_width=3), "impl": "content"}),
    *HARD,
]

VALUES_FIRST = [
    LayerCase("quadratic", RelativeAttention1d, {"impl": "separable"}),
    LayerCase("quadratic", options={"impl": "separable", "head_width": 2}),
    LayerCase("linear_distance", RelativeAttention3d, {"impl": "separable", "head_width": 1}),
    LayerCase("generalized_quadratic", options={"impl": "dense", "head_width": 2}),
]
"""Layers whose heads are to mix channels of their own."""


def hard_layer(**options):
    torch.manual_seed(0)
    centres = [[row, col] for row in (-1, 0, 1) for col in (-1, 0, 1)]
    encoding = Quadratic(9, 2, centres=centres, sharpness=options.pop("sharpness", 128.0))
    return RelativeAttention2d(3, 5, 9, encoding, **options)


def images(*sizes, batch=2, channels=3, dtype=torch.float32):
    shape = (batch, channels, *sizes)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def by_path(layer, path, x):
    other = copy.deepcopy(layer)
    other.impl = path
    return other(x)
