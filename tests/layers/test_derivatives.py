"""Derivatives of every order and by every road of torch, on every path: those of the reference path, in float64."""

import copy
import weakref
from functools import partial

import pytest
import torch
from tests.encodings.formula_cases import FORMULAS, small_encoding
from tests.layers.derivative_roads import (
    ROADS,
    Numbers,
    backward_to_inputs,
    each_layer_by_itself,
    forward_over_reverse,
    gradient_thrice,
    gradient_twice,
    hessian_twice,
    jacobian_by_rows,
    terms_of_gradient_thrice,
    terms_of_gradient_twice,
)
from tests.layers.layer_cases import ADDITIVE, HARD, LayerCase
from tests.testing.dense import as_dtype, dense_attention

from convattn.budget import Sums, assert_within_budget, references, roundings
from convattn.encodings import ENCODINGS
from convattn.errors import ArgumentError
from convattn.functional import separable, tiles, torch_modes
from convattn.layers import (
    Content,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)
from convattn.models import AttentionNet
from convattn.testing.contracts import stir

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:`torch.jit.script` is deprecated:FutureWarning"
    ),  # torch's own forward mode
    pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning"),
]

FEW = 8
"""Numbers of a derivative of which all may be right by luck."""

SIZES = {1: (5,), 2: (2, 3), 3: (1, 2, 3)}
NARROW = Content(key_width=3)

PATHS = [
    *(
        LayerCase("quadratic", options={"impl": impl})
        for impl in ("reference", "dense", "separable")
    ),
    LayerCase("quadratic", options={"impl": "separable", "head_width": 1}),
    LayerCase("learned_axial", options={"content": NARROW}),
    LayerCase("learned_table", options={"content": Content(key_width=32)}),
    LayerCase("quadratic", options={"gate": "sigmoid"}),
    next(
        case for case in HARD if case.options == {"impl": "shift"} and case.encoding == "quadratic"
    ),
    next(case for case in HARD if case.options == {"impl": "auto"}),
]
"""Every path, by every road; in float64 the Fourier path is that of explicit weights, and has a test of its own."""

OTHERS = [name for name in ENCODINGS if name != "quadratic"]
SEEN_ABOVE = {"generalized_quadratic", "learned_axial", "sinusoidal"}
"""Encodings whose scores beside content are products with fixed features, or are on a path above."""

MORE = [
    *(LayerCase(name, options={"impl": "dense"}) for name in OTHERS),
    *(LayerCase(name, options={"impl": "separable"}) for name in OTHERS if name in ADDITIVE),
    *(
        LayerCase(name, options={"content": NARROW, "impl": "content"})
        for name in OTHERS
        if name not in SEEN_ABOVE
    ),
    *(LayerCase("distance", kind) for kind in (RelativeAttention1d, RelativeAttention3d)),
    *(LayerCase("quadratic", kind) for kind in (RelativeAttention1d, RelativeAttention3d)),
    LayerCase("quadratic", options={"gate": "tanh"}),
]
"""Every encoding and number of axes, by the roads to a Hessian times a vector that differ most."""

OF_ONE_IMAGE = {hessian_twice, jacobian_by_rows}
"""Derivatives with a row for each number of an image or of an output; the others are taken of two images."""

every_derivative = pytest.mark.parametrize("plain", ROADS, ids=lambda plain: plain.__name__)


def layer_and_images(case):
    """Makes a layer with groups, stride and padding, and images for it."""
    torch.manual_seed(0)
    geometry = {
        "groups": 2,
        "kernel_size": 1,
        "padding": [(1, 0)] * case.kind.dims,
        "stride": (2, *(1,) * (case.kind.dims - 1)),
        **case.options,
    }
    encoding = small_encoding(case.encoding, case.heads, case.kind.dims, **case.encoding_options)
    layer = case.settle(stir(case.kind(4, 2, num_heads=case.heads, encoding=encoding, **geometry)))
    return layer.double(), torch.randn(2, 4, *SIZES[case.kind.dims], dtype=torch.float64)


def by_definition(layer, formula, *, backwards):
    """Copies a layer, and has the copy computed by its definition: a road that shares no rounding with `reference`."""
    made = copy.deepcopy(layer)
    made.forward = partial(dense_attention, made, formula=formula, backwards=backwards)
    return made


def check(case, layer, x, plain, roads):
    """Holds a derivative by every road against the plainest one of the definition, which is code of the tests."""
    reference = copy.deepcopy(layer)
    reference.impl = "reference"
    first, second = (
        by_definition(layer, FORMULAS[case.encoding], backwards=backwards)
        for backwards in (False, True)
    )

    def derivative(layer, x):
        return plain(Numbers.of(layer, x))

    hi, lows = references(derivative, first, x)
    lows += roundings(derivative, second, x, count=2)
    exactly, terms = Numbers.of(as_dtype(reference, torch.float64), x.double()), {}
    if plain is gradient_thrice:
        terms = {"third": terms_of_gradient_thrice(exactly)}
    elif plain is gradient_twice:
        terms = {
            name: found
            for name, found in terms_of_gradient_twice(exactly).items()
            if found[0].numel() <= FEW
        }
    sums = {name: Sums(len(found), found.abs().sum(0)) for name, found in terms.items()}
    for road in roads:
        found, beside = road(Numbers.of(layer, x)), []
        if layer.impl != "reference":  # which is held by itself; each road rounds in its own way
            beside = [road(Numbers.of(reference, x))]
        assert found.keys() == hi.keys()
        for name, exact in hi.items():
            rounded = [low[name].detach() for low in (*lows, *beside)]
            assert_within_budget(
                found[name].detach(),
                exact.detach(),
                rounded,
                f"{name} by {road.__name__}",
                sums=sums.get(name),
            )


@every_derivative
@pytest.mark.parametrize("case", PATHS, ids=str)
def test_every_road_leads_to_the_derivatives_of_the_reference(case, plain):
    layer, x = layer_and_images(case)
    x = x[:1] if plain in OF_ONE_IMAGE else x
    if case.options.get("impl") == "shift" and plain is each_layer_by_itself:
        with pytest.raises(
            ArgumentError, match="'shift'"
        ):  # numbers that differ from layer to layer cannot be read
            check(case, layer, x, plain, ROADS[plain])
    else:
        check(case, layer, x, plain, ROADS[plain])


@pytest.mark.parametrize("case", MORE, ids=str)
def test_every_encoding_has_second_derivatives(case):
    check(
        case,
        *layer_and_images(case),
        gradient_twice,
        [gradient_twice, backward_to_inputs, forward_over_reverse],
    )


@every_derivative
def test_transforms_have_derivatives(plain):
    """In float64 the Fourier path computes explicit weights; here it transforms."""
    case = LayerCase("distance", RelativeAttention1d, {"impl": "fourier"})
    layer, x = layer_and_images(case)
    assert layer.float().plan(x.shape).path == "fourier"
    check(case, layer, x.float(), plain, ROADS[plain])


@pytest.mark.parametrize("impl", ["separable", "dense"])
def test_a_gradient_that_is_no_longer_differentiated_by_torch_is_noticed(impl, monkeypatch):
    """Negative control: with the hand-written gradient alone, which torch sees as constant, a Hessian is wrong."""
    case = LayerCase("quadratic", options={"impl": impl, "groups": 1})
    constant = torch_modes.backward_to_differentiate
    monkeypatch.setattr(separable, "SMALL_BYTES", -1)
    check(case, *layer_and_images(case), gradient_twice, [gradient_twice])
    monkeypatch.setattr(
        tiles, "backward_to_differentiate", lambda *args: _detached(constant(*args))
    )
    with pytest.raises((AssertionError, RuntimeError), match="error"):
        check(case, *layer_and_images(case), gradient_twice, [gradient_twice])


def _detached(gradients):
    return [
        None if gradient is None else gradient.detach().requires_grad_() for gradient in gradients
    ]


def gradients_of_each(network, x):
    """The gradients of each image alone, by `vmap`, and one after the other."""
    weights = {name: weight.detach() for name, weight in network.named_parameters()}

    def loss(weights, image):
        return torch.func.functional_call(network, weights, (image[None],)).square().sum()

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    one_by_one = [torch.func.grad(loss)(weights, image) for image in x]
    return together, {name: torch.stack([one[name] for one in one_by_one]) for name in weights}


@pytest.mark.parametrize(
    "network",
    [
        lambda: RelativeAttention2d(3, 4, num_heads=2, encoding="quadratic"),
        lambda: AttentionNet(width=8, depth=1, heads=4, ffn=8).eval(),
    ],
    ids=["a layer", "a network whose images have their channels last within"],
)
def test_images_whose_channels_are_last_have_gradients_one_by_one(network):
    torch.manual_seed(0)
    x = torch.randn(3, 3, 6, 8).to(memory_format=torch.channels_last)
    together, one_by_one = gradients_of_each(network().double(), x.double())
    for name, gradient in together.items():
        assert (gradient - one_by_one[name]).abs().max() <= 1e-12 * one_by_one[name].abs().max()


def test_images_are_let_go_when_their_gradients_are_made():
    """A hook on them would keep them as long as the loss."""
    layer = RelativeAttention2d(3, 4, num_heads=2, encoding="quadratic")
    x = torch.randn(2, 3, 6, 8, requires_grad=True)
    images = 2 * x
    seen = weakref.ref(images)
    loss = layer(images).square().sum()
    del images
    loss.backward()
    assert seen() is None
