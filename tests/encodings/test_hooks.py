"""Hooks on an encoding, or inside it: what computes parameters takes effect, all else is refused by name."""

import warnings

import pytest
import torch
from tests.encodings.formula_cases import small_encoding
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from convattn.encodings import ENCODINGS, AxisAdditiveEncoding
from convattn.encodings.encoding import compute_parameters
from convattn.errors import ArgumentError
from convattn.grid import Axis
from convattn.layers import RelativeAttention2d

NAMES = tuple(ENCODINGS)
AXES = [Axis(range(5), 5), Axis(range(3), 3)]


def norm(module, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        weight_norm(module, name)


COMPUTING = {
    "prune": (lambda module, name: prune.l1_unstructured(module, name, amount=1), "_orig"),
    "weight_norm": (norm, "_v"),
    "spectral_norm": (spectral_norm, "_orig"),
    "parametrization": (parametrizations.weight_norm, "original1"),
}
PLACES = {
    "quadratic": ("", "centres"),
    "generalized_quadratic": ("", "centres"),
    "linear_distance": ("", "centres"),
    "learned_table": ("", "scores"),
    "sinusoidal": ("", "head_vectors"),
    "learned_axial": ("tables", "0"),
    "distance": ("inner", "weight"),
    "axial_distance": ("axes.0.outer", "weight"),
}


def table_of(encoding):
    """Scores of a grid, as a layer reads them."""
    if isinstance(encoding, AxisAdditiveEncoding):
        return torch.cat(encoding.axis_tables(AXES), dim=1)
    return encoding.table(AXES)


@pytest.mark.filterwarnings("ignore")  # of torch's own code
@pytest.mark.parametrize("name", ["distance", "axial_distance"])
def test_scores_of_quantised_linear_maps_are_those_of_their_rounded_numbers(name):
    torch.manual_seed(0)
    encoding = small_encoding(name, 3, 2)
    quantised = torch.ao.quantization.quantize_dynamic(encoding, {nn.Linear}, dtype=torch.qint8)
    for place, module in quantised.named_modules():
        if hasattr(module, "weight") and callable(module.weight):
            rounded = module.weight().dequantize()
            own = encoding.get_submodule(place)
            assert not torch.equal(rounded, own.weight)
            with torch.no_grad():
                own.weight.copy_(rounded)
    assert torch.equal(table_of(quantised), table_of(encoding))


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("how", COMPUTING)
def test_numbers_behind_a_computed_parameter_count(how, name):
    apply, suffix = COMPUTING[how]
    torch.manual_seed(0)
    encoding = small_encoding(name, 3, 2).eval()
    place, parameter = PLACES[name]
    module = encoding.get_submodule(place)
    if parameter == "0" and how == "parametrization":
        pytest.skip("torch does not parametrise what is in a list")
    apply(module, parameter)
    before = table_of(encoding).detach().clone()
    behind = next(value for key, value in encoding.named_parameters() if key.endswith(suffix))
    with torch.no_grad():
        behind.mul_(torch.linspace(0.5, 1.5, behind.shape[-1]))
    after = table_of(encoding)
    assert not torch.equal(after, before)
    assert torch.autograd.grad(after.sum(), behind)[0].abs().sum() > 0


def test_every_encoding_has_been_tried():
    assert set(PLACES) == {name for name in NAMES if list(small_encoding(name, 3, 2).parameters())}


@pytest.mark.parametrize("impl", ["auto", "dense", "fourier", "reference", "separable"])
def test_pruning_takes_effect_in_a_layer(impl):
    layer = RelativeAttention2d(3, 5, num_heads=4, encoding="quadratic", impl=impl).eval()
    x = torch.randn(1, 3, 7, 5)
    layer(x)
    prune.l1_unstructured(layer.encoding, "centres", amount=3)
    with torch.no_grad():
        layer.encoding.centres_orig.add_(1.0)
    pruned = layer(x)
    prune.remove(layer.encoding, "centres")
    assert torch.equal(pruned, layer(x))


REFUSED = {
    "forward hook": lambda module, hook: module.register_forward_hook(hook),
    "forward pre-hook": lambda module, hook: module.register_forward_pre_hook(hook),
    "backward hook": lambda module, hook: module.register_full_backward_hook(hook),
    "backward pre-hook": lambda module, hook: module.register_full_backward_pre_hook(hook),
}


def double(*_):
    raise AssertionError("it is not to run")


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("quadratic", ""),
        ("learned_axial", "tables"),
        ("distance", "outer"),
        ("axial_distance", "axes.1"),
    ],
)
def test_other_hooks_are_refused_by_name(kind, name, place):
    encoding = small_encoding(name, 3, 2)
    layer, module = (
        RelativeAttention2d(3, 5, num_heads=3, encoding=encoding),
        encoding.get_submodule(place),
    )
    handle = REFUSED[kind](module, double)
    message = f"the {kind} double on {type(module).__name__} would be ignored, .*: put the hook on the layer"
    for ask in (
        lambda: layer(torch.zeros(1, 3, 5, 3)),
        lambda: layer.attention((5, 3)),
        lambda: encoding.table(AXES),
    ):
        with pytest.raises(ArgumentError, match=message):
            ask()
    handle.remove()
    layer(torch.zeros(1, 3, 5, 3))


def test_features_along_the_axes_are_read_like_scores():
    encoding = small_encoding("sinusoidal", 3, 2)
    encoding.register_forward_hook(double)
    with pytest.raises(ArgumentError, match="the forward hook double on Sinusoidal"):
        encoding.axis_features(AXES)


def test_a_call_of_an_encoding_runs_its_hooks_as_torch_does():
    encoding = small_encoding("quadratic", 3, 2)
    encoding.register_forward_hook(lambda _, __, scores: scores + 1)
    points = torch.zeros(1, 2)
    assert torch.equal(encoding(points), encoding.forward(points) + 1)


def test_without_hooks_nothing_is_computed():
    linear = nn.Linear(2, 3)
    linear.forward = double
    before = [(name, id(held), held._version) for name, held in linear.named_parameters()]
    compute_parameters(linear)
    assert [(name, id(held), held._version) for name, held in linear.named_parameters()] == before
