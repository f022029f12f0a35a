"""Encodings of one's own: a subclass with one method, or a function."""

from functools import partial

import pytest
import torch
from tests.testing.attention_contract import AttentionContract
from tests.testing.dense import as_dtype, dense_attention
from torch import nn

from convattn import load_network, register_encoding, save_network
from convattn.budget import assert_within_budget, roundings
from convattn.encodings import (
    ENCODINGS,
    AxisAdditiveEncoding,
    Encoding,
    Quadratic,
    ScoreFunction,
    create_encoding,
    registry,
)
from convattn.errors import (
    ArgumentError,
    CheckpointError,
    EncodingRangeError,
    ShapeError,
    UnsupportedModelError,
)
from convattn.layers import RelativeAttention1d, RelativeAttention2d
from convattn.testing.contracts import EncodingContract, Formula


class Ring(Encoding):
    """Score −(‖δ‖ − r_h)²: a head looks at a ring around the query. Only `score` is written."""

    def __init__(self, num_heads, dims):
        super().__init__(num_heads, dims)
        self.radii = nn.Parameter(torch.arange(num_heads, dtype=torch.get_default_dtype()) + 0.5)

    def score(self, displacement):
        radii = self.radii.to(displacement.dtype).view(-1, *(1,) * (displacement.ndim - 1))
        return -((displacement.square().sum(-1).add(1e-3).sqrt() - radii) ** 2)


class Slope(AxisAdditiveEncoding):
    """Score w_h Σ_a sin(δ_a / period): axis by axis, with an option and no features."""

    def __init__(self, num_heads, dims, *, period=4.0):
        super().__init__(num_heads, dims)
        self.period, self.weights = period, nn.Parameter(torch.randn(num_heads))

    def options(self):
        return {"period": self.period}

    def axis_scores(self, displacement):
        weights = self.weights.to(displacement.dtype).view(-1, *(1,) * displacement.ndim)
        return weights * torch.sin(displacement / self.period)


def ring(encoding, displacement):
    radii = encoding.radii.to(displacement.dtype)
    lengths = torch.linalg.vecdot(displacement, displacement).add(1e-3) ** 0.5
    return torch.stack(
        [2 * radius * lengths - lengths * lengths - radius * radius for radius in radii]
    )


def slope(encoding, displacement):
    waves = sum(torch.sin(axis / encoding.period) for axis in displacement.unbind(-1))
    return torch.stack([weight * waves for weight in encoding.weights.to(displacement.dtype)])


class TestRing(EncodingContract):
    formula = Formula(ring)

    def create(self, num_heads, dims):
        return Ring(num_heads, dims)


class TestSlope(EncodingContract):
    formula = Formula(slope)

    def create(self, num_heads, dims):
        return Slope(num_heads, dims, period=2.0)


class Diagonal(Encoding):
    """An encoding of images alone."""

    def __init__(self, num_heads, dims):
        super().__init__(num_heads, dims)
        self.steepness = torch.nn.Parameter(torch.ones(num_heads, 2))

    def score(self, displacement):
        rows, cols = displacement.unbind(-1)
        along = torch.stack([rows + cols, rows - cols]).square()
        return -torch.einsum("ha,a...->h...", self.steepness.to(displacement.dtype), along)


def diagonal(encoding, displacement):
    rows, cols = displacement.unbind(-1)
    scores = [-a * (rows + cols) ** 2 - b * (rows - cols) ** 2 for a, b in encoding.steepness]
    return torch.stack(scores)


class TestDiagonal(EncodingContract):
    formula = Formula(diagonal)
    dims = (2,)

    def create(self, num_heads, dims):
        assert dims == 2
        return Diagonal(num_heads, dims)


class TestLayerWithRing(AttentionContract):
    formula = Formula(ring)

    def create(self, in_channels, out_channels, **options):
        return RelativeAttention2d(
            in_channels, out_channels, num_heads=2, encoding=Ring(2, 2), **options
        )


def near(displacement):
    return -torch.stack([displacement.abs().sum(-1), displacement.square().sum(-1)])


@pytest.mark.parametrize("impl", ["auto", "dense", "fourier", "reference"])
def test_a_function_is_an_encoding(impl):
    layer, x = (
        RelativeAttention2d(3, 5, num_heads=2, encoding=near, impl=impl),
        torch.randn(2, 3, 7, 5),
    )
    formula = Formula(lambda _, displacement: near(displacement))
    hi = dense_attention(as_dtype(layer, torch.float64), x.double(), formula)
    assert_within_budget(
        layer(x), hi, roundings(partial(dense_attention, formula=formula), layer, x)
    )
    assert repr(layer.encoding) == "ScoreFunction(num_heads=2, dims=2, function=near)"


def test_a_module_is_trained_with_the_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 4)

        def forward(self, displacement):
            return self.inner(displacement).movedim(-1, 0)

    layer = RelativeAttention2d(3, 5, num_heads=4, encoding=Net())
    assert "encoding.function.inner.weight" in dict(layer.named_parameters())
    layer(torch.randn(2, 3, 7, 5)).square().sum().backward()
    assert layer.encoding.function.inner.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("function", "came"),
    [
        (lambda displacement: displacement.sum(-1), r"\(13, 9\)"),
        (lambda displacement: displacement, r"\(13, 9, 2\)"),
        (lambda _: 1.0, "'float'"),
    ],
)
def test_scores_of_another_shape_are_refused(function, came, without_type_checks):
    message = rf"the score of ScoreFunction\(.*\) must be of shape \(heads, \*points\) = \(3, 13, 9\), but is {came}"
    with pytest.raises(ShapeError, match=message):
        RelativeAttention2d(3, 5, num_heads=3, encoding=function)(torch.zeros(1, 3, 7, 5))


def test_scores_along_an_axis_of_another_shape_are_refused():
    class Wrong(AxisAdditiveEncoding):
        def axis_scores(self, displacement):
            return displacement

    with pytest.raises(ShapeError, match=r"the score of Wrong\(.*= \(3, 2, 13\), but is \(2, 13\)"):
        RelativeAttention2d(3, 5, num_heads=3, encoding=Wrong(3, 2))(torch.zeros(1, 3, 7, 5))
    with pytest.raises(ShapeError, match=r"the score of Wrong\(.*= \(3, 2, 9\), but is \(2, 9\)"):
        Wrong(3, 2)(torch.zeros(9, 2))


@pytest.mark.parametrize("function", [Quadratic, 3, None])
def test_what_is_no_function_is_refused(function, without_type_checks):
    with pytest.raises(ArgumentError, match="function must be a function of displacements, but is"):
        ScoreFunction(2, 2, function=function)


@pytest.fixture
def registered(encodings_forgotten):
    """Names for the encodings of this file."""
    register_encoding("ring", Ring)
    register_encoding("slope", Slope)


def test_a_registered_encoding_is_built_by_name(registered):
    assert (
        repr(RelativeAttention2d(3, 5, num_heads=2, encoding="slope").encoding)
        == "Slope(num_heads=2, dims=2, period=4.0)"
    )
    assert create_encoding("slope", 2, 1, period=3.0).period == 3.0
    register_encoding("ring", Ring)
    with pytest.raises(
        ArgumentError,
        match=r"option of encoding 'slope' must be one of \['period'\], but is 'perod'",
    ):
        create_encoding("slope", 2, 1, perod=3.0)


def test_layers_come_back_bit_by_bit(registered, tmp_path):
    for number, encoding in enumerate((Ring(2, 2), Slope(2, 2, period=3.0))):
        layer, x = (
            RelativeAttention2d(3, 5, num_heads=2, encoding=encoding).eval(),
            torch.randn(2, 3, 7, 5),
        )
        loaded = load_network(save_network(layer, tmp_path / str(number)))
        assert torch.equal(loaded(x), layer(x))
        assert repr(loaded) == repr(layer)


def test_loading_without_registering_says_what_to_do(registered, tmp_path):
    layer = RelativeAttention1d(3, 5, num_heads=2, encoding="ring")
    folder, whole = (
        save_network(layer, tmp_path / "layer"),
        save_network(nn.Sequential(layer), tmp_path / "network"),
    )
    del registry._known["ring"]
    message = "its encoding 'ring' is not registered: if it is your own, call convattn.register_encoding before"
    for load in (
        lambda: load_network(folder),
        lambda: load_network(whole, model=nn.Sequential(nn.Conv1d(3, 5, 1))),
    ):
        with pytest.raises(CheckpointError, match=message):
            load()


def test_what_could_not_be_loaded_is_not_saved(registered, tmp_path):
    class Period(Slope):
        def options(self):
            return {}

    class Odd(Slope):
        def options(self):
            return {"period": torch.tensor(self.period)}

    register_encoding("period", Period)
    register_encoding("odd", Odd)
    cases = {
        near: r"cannot save the encoding ScoreFunction\(.*\): a file holds no functions. Write it as a subclass",
        (lambda points: -points.movedim(-1, 0)): "a file holds no functions",
        type("Mine", (Ring,), {})(
            2, 2
        ): r"the encoding Mine: .* no name. .*register_encoding\('mine', Mine\)",
        Period(
            2, 2
        ): r"cannot save the encoding Period: its options\(\) must return its argument 'period'",
        Odd(
            2, 2
        ): r"cannot save the encoding Odd: its options\(\) must be JSON types, but are \{'period': tensor",
    }
    for encoding, message in cases.items():
        layer = RelativeAttention2d(3, 5, num_heads=2, encoding=encoding)
        with pytest.raises(UnsupportedModelError, match=message):
            save_network(nn.Sequential(layer), tmp_path / "network")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("quadratic", Ring, "name must be new, but 'quadratic' is already the name of Quadratic"),
        ("ring", Slope, "name must be new, but 'ring' is already the name of Ring"),
        (
            "two words",
            Ring,
            "name must be a name of letters, digits and underscores, but is 'two words'",
        ),
        (3, Ring, "name must be a name of letters"),
        (
            "mine",
            near,
            "kind must be a subclass of Encoding that can be built, but is <function near",
        ),
        ("mine", Encoding, "kind must be a subclass of Encoding that can be built"),
        ("mine", nn.Linear, "kind must be a subclass of Encoding"),
    ],
)
def test_what_cannot_be_registered_is_refused(registered, name, kind, message, without_type_checks):
    with pytest.raises(ArgumentError, match=message):
        register_encoding(name, kind)
    assert "mine" not in ENCODINGS


def test_an_encoding_that_does_not_hold_every_displacement_says_so_by_its_extent():
    class Narrow(Ring):
        extent = (3, 2)

    layer = RelativeAttention2d(1, 1, num_heads=2, encoding=Narrow(2, 2))
    assert layer(torch.zeros(1, 1, 3, 2)).shape == (1, 1, 3, 2)
    message = r"Narrow holds displacements from -1 to 1 along axis 1, but -4 to 4 are asked"
    with pytest.raises(EncodingRangeError, match=message):
        layer(torch.zeros(1, 1, 3, 5))
