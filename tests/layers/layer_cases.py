"""Every kind of attention layer, as a case: axes, encoding, path, values, content."""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from tests.encodings.formula_cases import FORMULAS, small_encoding
from tests.encodings.hard_numbers import HARD_NUMBERS, HARD_OPTIONS
from tests.testing.attention_contract import GEOMETRIES, AttentionContract

from convattn.budget import references
from convattn.encodings import ENCODINGS, AxisAdditiveEncoding, Quadratic
from convattn.layers import (
    Content,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)

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
        return " ".join(
            part for part in (self.kind.__name__, self.encoding, options, self.note) if part
        )

    def create(self, in_channels, out_channels, **options):
        encoding = small_encoding(
            self.encoding, self.heads, self.kind.dims, **self.encoding_options
        )
        return self.settle(
            self.kind(
                in_channels,
                out_channels,
                num_heads=self.heads,
                encoding=encoding,
                **self.options,
                **options,
            )
        )

    def settle(self, layer):
        """Writes the numbers of the case into a layer."""
        with torch.no_grad():
            for name, numbers in self.numbers.items():
                layer.encoding.get_parameter(name).copy_(numbers)
        return layer

    @property
    def code(self) -> Hashable:
        """Everything of the case that chooses which code runs; encodings that are computed alike are one."""
        return repr(self.options), self.heads, self.code_of_weights

    @property
    def code_of_weights(self) -> Hashable:
        """What chooses the code of the attention weights themselves, which no path has a part in."""
        encoding = self.encoding in ADDITIVE, self.encoding == "shift"
        seen = None if "content" not in self.options else FORMULAS[self.encoding].features is None
        scores = [self.options.get(name) for name in ("content", "gate")]
        return self.kind, repr(scores), bool(self.numbers), encoding, seen

    @property
    def code_of_places(self) -> Hashable:
        """What chooses the code that places of queries and keys reach: which terms a score has is no part of it."""
        content, additive = "content" in self.options, self.encoding in ADDITIVE
        path = self.options.get("impl"), "head_width" in self.options, content or additive
        return self.kind, *path, content, bool(self.numbers)

    @property
    def code_of_values(self) -> Hashable:
        """What chooses the code that values of a kind of path reach, whatever the scores are."""
        return self.code_of_places, self.options.get("gate")

    @property
    def class_of_layer(self) -> Hashable:
        """The class, and whether the scores depend on content."""
        return self.kind, "content" in self.options


def one_of_each(
    cases: Sequence[LayerCase], what: Callable[[LayerCase], Hashable]
) -> list[LayerCase]:
    """Lists the first case of each kind, in their order."""
    first = {}
    for case in cases:
        first.setdefault(what(case), case)
    return list(first.values())


OF_EVERY_CASE = {"test_output_is_attention_by_definition"}
OF_THE_CLASS = {
    "test_called_as_a_convolution_by_name_or_on_one_image",
    "test_channels_last_input",
    "test_input_that_is_a_view",
    "test_input_is_left_alone",
    "test_state_dict_and_copies_carry_everything",
}
OF_PLACES = {
    "test_any_geometry_is_attention_by_definition",
    "test_cropped_and_padded_unevenly",
    "test_small_batches",
    "test_one_pixel",
    "test_another_size_needs_no_new_layer",
}
OF_VALUES = {
    "test_device_meta_gives_shapes_and_gradients_without_numbers",
    "test_gradcheck",
    "test_without_bias",
}
OF_WEIGHTS = {"test_attention_weights_are_those_of_the_definition"}
KINDS_OF_CLAUSES = (
    (OF_THE_CLASS, lambda case: case.class_of_layer),
    (OF_PLACES, lambda case: case.code_of_places),
    (OF_VALUES, lambda case: case.code_of_values),
    (OF_WEIGHTS, lambda case: case.code_of_weights),
)
"""Clauses of the contract by what they are about; the rest is about all code that a case runs."""


def cases_of(clause: str, cases: Sequence[LayerCase]) -> Sequence[LayerCase]:
    """Chooses the cases against which a clause of the contract is held: those that reach other code."""
    if clause in OF_EVERY_CASE:
        return cases
    for clauses, what in KINDS_OF_CLAUSES:
        if clause in clauses:
            return one_of_each(cases, what)
    return one_of_each(cases, lambda case: case.code)


class CaseContract(AttentionContract):
    """The contract of the layers of a case.

    Attributes:
        cases: Cases that a test class goes through: a clause is held against those of them that reach other code.
        case: The case of a test.
        turn: Which half of the geometries the first case takes.
    """

    cases: ClassVar[Sequence[LayerCase]] = ()
    case: LayerCase
    turn: int = 0

    @pytest.fixture(autouse=True)
    def _case(self, request):
        self.case = request.param

    def pytest_generate_tests(self, metafunc):
        metafunc.parametrize(
            "_case", cases_of(metafunc.function.__name__, self.cases), ids=str, indirect=True
        )

    def test_any_geometry_is_attention_by_definition(self, *geometries):
        """Each case takes a half of them, in turn: cases side by side have a path in common."""
        if not geometries:
            cases = cases_of("test_any_geometry_is_attention_by_definition", self.cases)
            first = (cases.index(self.case) + self.turn) % 2
            geometries = list(GEOMETRIES.values())[first::2]
        super().test_any_geometry_is_attention_by_definition(*geometries)

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


ADDITIVE = [name for name, kind in ENCODINGS.items() if issubclass(kind, AxisAdditiveEncoding)]


def hard(
    encoding: str,
    *centres: Sequence[int],
    kind: type = RelativeAttention2d,
    impl: str = "shift",
    **options: Any,
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
    hard(
        "quadratic", (-1, 1), (9, 0), (-1, 1), head_width=2
    ),  # two at one pixel, one beyond the border everywhere
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
    LayerCase(
        "sinusoidal", options={"content": Content(key_width=5, query_bias=True, key_bias=True)}
    ),
    LayerCase("quadratic", options={"content": Content(key_width=3, project_position=False)}),
    LayerCase("learned_table", options={"content": Content(key_width=3, content_bias=False)}),
    LayerCase("distance", RelativeAttention1d, {"content": Content(position=False)}),
    LayerCase("learned_axial", RelativeAttention3d, {"content": True, "head_width": 1}),
    LayerCase("quadratic", RelativeAttention2d, {"gate": "sigmoid"}),
    LayerCase(
        "learned_axial", RelativeAttention2d, {"gate": "sigmoid", "content": Content(key_width=3)}
    ),
    *(
        LayerCase(name, options={"content": Content(key_width=3), "impl": "content"})
        for name in ENCODINGS
    ),
    LayerCase("distance", RelativeAttention1d, {"content": True, "impl": "content"}),
    LayerCase(
        "quadratic",
        options={
            "content": Content(key_width=3, project_position=False, query_bias=True),
            "impl": "content",
        },
    ),
    LayerCase("quadratic", RelativeAttention2d, {"gate": "tanh"}),
    LayerCase("distance", RelativeAttention1d, {"gate": "tanh", "head_width": 2}),
    LayerCase("quadratic", RelativeAttention3d, {"gate": "tanh", "content": Content(key_width=3)}),
    LayerCase(
        "distance",
        RelativeAttention2d,
        {"gate": "sigmoid", "content": Content(key_width=3), "impl": "content"},
    ),
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
    return RelativeAttention2d(3, 5, num_heads=9, encoding=encoding, **options)


def images(*sizes, batch=2, channels=3, dtype=torch.float32):
    shape = (batch, channels, *sizes)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )


def by_path(layer, path, x):
    other = copy.deepcopy(layer)
    other.impl = path
    return other(x)


def by_reference(layer, x):
    """Computes a layer by the reference path, in float64 and as several roundings."""
    return references(lambda layer, x: by_path(layer, "reference", x).detach(), layer, x)
