"""Every kind of attention layer, as a case: axes, encoding, path, values, content."""

from dataclasses import dataclass, field
from typing import Any

from tests.encodings.formula_cases import small_encoding

from convattn.encodings import ENCODINGS
from convattn.layers import (
    Content,
    GatedRelativeAttention2d,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)

HEADS = 2


@dataclass(frozen=True)
class LayerCase:
    encoding: str
    kind: type = RelativeAttention2d
    options: dict[str, Any] = field(default_factory=dict)
    encoding_options: dict[str, Any] = field(default_factory=dict)

    def __str__(self):
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.kind.__name__} {self.encoding} {options}".strip()

    def create(self, in_channels, out_channels, **options):
        encoding = small_encoding(self.encoding, HEADS, self.kind.dims)
        return self.kind(in_channels, out_channels, HEADS, encoding, **self.options, **options)


ADDITIVE = [name for name, kind in ENCODINGS.items() if kind.axis_additive]

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
    LayerCase("distance", GatedRelativeAttention2d, {"content": Content(key_width=3), "impl": "content"}),
]
