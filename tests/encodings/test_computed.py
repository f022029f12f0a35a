"""Numbers computed from a parameter: they can be assigned."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from convattn.budget import assert_within_budget, roundings
from convattn.encodings import GeneralizedQuadratic, LinearDistance, Quadratic
from convattn.errors import ArgumentError, ShapeError
from convattn.layers import RelativeAttention2d

COMPUTED = {
    "sharpness": (Quadratic, "root_sharpness", [0.5, 2.0, 8.0]),
    "slope": (LinearDistance, "log_slope", [0.25, 1.0, 3.0]),
    "precision": (GeneralizedQuadratic, "shape", [[[2.0, 0.5], [0.5, 1.0]]] * 3),
}


def by_factors(precision):
    lower = torch.linalg.cholesky(precision)
    return lower @ lower.mT


THERE_AND_BACK = {
    "sharpness": lambda x: (2 * x).sqrt().square() / 2,
    "slope": lambda x: x.log().exp(),
    "precision": by_factors,
}
"""What the rounding of the parameter leaves of each value."""


@pytest.fixture(params=COMPUTED)
def case(request):
    kind, parameter, value = COMPUTED[request.param]
    return kind(3, 2), request.param, parameter, torch.tensor(value)


def test_assigning_them_writes_the_parameter_that_is_there(case):
    encoding, name, parameter, value = case
    held = getattr(encoding, parameter)
    for given in (value, value[0], value.tolist(), value.double().numpy()):
        setattr(encoding, name, given)
        assert getattr(encoding, parameter) is held
        made, expected = (
            getattr(encoding, name),
            torch.as_tensor(given).double().expand(value.shape),
        )
        assert_within_budget(made, expected, roundings(THERE_AND_BACK[name], expected.float()))
    getattr(encoding, name).sum().backward()
    assert held.grad.abs().sum() > 0


def test_a_layer_uses_what_was_assigned():
    layer, x = (
        RelativeAttention2d(3, 5, num_heads=2, encoding=Quadratic(2, 2, sharpness=0.5)),
        torch.randn(1, 3, 7, 5),
    )
    before = layer(x)
    layer.encoding.sharpness = 2.0
    fresh = RelativeAttention2d(
        3, 5, num_heads=2, encoding=Quadratic(2, 2, centres=layer.encoding.centres, sharpness=2.0)
    )
    fresh.load_state_dict(layer.state_dict())
    assert not torch.equal(layer(x), before)
    assert torch.equal(layer(x), fresh(x))


@pytest.mark.parametrize(
    "value", [0.0, -1.0, torch.inf, torch.nan, 1e-60, 1e60, "much", [1.0, 0.0, 1.0]], ids=str
)
@pytest.mark.parametrize("name", COMPUTED)
def test_values_out_of_range_are_refused_and_change_nothing(name, value):
    kind, parameter, _ = COMPUTED[name]
    encoding = kind(3, 2)
    before = getattr(encoding, parameter).detach().clone()
    given = value
    if name == "precision" and not isinstance(value, str):
        given = torch.as_tensor(value).view(-1, 1, 1).expand(3, 2, 2)  # singular, or not finite
    with pytest.raises(ArgumentError, match=f"{name} must be"):
        setattr(encoding, name, given)
    assert torch.equal(getattr(encoding, parameter), before)


def test_shapes_and_matrices_that_do_not_fit_are_refused():
    with pytest.raises(
        ShapeError,
        match=r"sharpness must be finite numbers of shape \(3,\), or \(\) for all heads, but",
    ):
        Quadratic(3, 2).sharpness = [1.0, 2.0]
    with pytest.raises(
        ShapeError,
        match=r"precision must be finite numbers of shape \(3, 2, 2\), or \(2, 2\) for all",
    ):
        GeneralizedQuadratic(3, 2).precision = 2.0
    with pytest.raises(ArgumentError, match="precision must be symmetric and positive definite"):
        GeneralizedQuadratic(3, 2).precision = [[1.0, 0.5], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float32, 1e80), (torch.float32, 1e-80), (torch.float16, 1e6)]
)
def test_a_precision_that_the_dtype_does_not_hold_is_refused(dtype, value):
    encoding = GeneralizedQuadratic(3, 2).to(dtype)
    before = encoding.shape.detach().clone()
    with pytest.raises(
        ArgumentError, match=f"precision must be symmetric and positive definite in {dtype}"
    ):
        encoding.precision = value * torch.eye(2, dtype=torch.float64)
    assert torch.equal(encoding.shape, before)


def test_a_parameter_that_is_itself_computed_is_not_written():
    pruned = prune.random_unstructured(Quadratic(3, 2), "root_sharpness", amount=1)
    parametrised = Quadratic(3, 2)
    parametrize.register_parametrization(parametrised, "root_sharpness", nn.Softplus())
    for encoding in (pruned, parametrised):
        with pytest.raises(ArgumentError, match="root_sharpness cannot be written: it is computed"):
            encoding.sharpness = 2.0
