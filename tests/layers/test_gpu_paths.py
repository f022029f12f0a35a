"""What a GPU computes, computed on a CPU: the definition with all gradients, in every precision."""

import importlib

import pytest
import torch
from tests.functional.test_fused import APART, CONTENTS, STRIDES, TABLE, expected_of, made, results
from tests.testing.gpu import pretend

from convattn.budget import assert_within_budget, references, roundings
from convattn.encodings import Quadratic
from convattn.functional import torch_modes
from convattn.functional.content import Masked, OneHot, Precision, SecondDegree
from convattn.functional.path import Heads
from convattn.grid import Axis
from convattn.layers import (
    Content,
    RelativeAttention2d,
)
from convattn.layers.content_scores import ContentScores

POSITIONS = {
    "sums over axes": ("quadratic", (5, 7), {}),
    "tables": (TABLE, (5, 7), {}),
    "all pairs": ("distance", (5, 7), {}),
    "a table of all pairs": ("learned_table", (5, 7), STRIDES),
    "strides": ("sinusoidal", (7, 5), STRIDES),
    "groups of channels": ("quadratic", (5, 7), {"groups": 2}),
    "narrow heads": ("quadratic", (5, 7), {"head_width": 1}),
    "a sequence": ("linear_distance", (11,), {}),
    "a volume": ("quadratic", (2, 3, 5), {}),
    "a pixel": ("generalized_quadratic", (1, 1), {}),
}
CASES = {
    **{
        name: (*case, {"content": False, **options}) for name, (*case, options) in POSITIONS.items()
    },
    **CONTENTS,
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    pretend(monkeypatch)


@every_case
def test_it_is_the_reference_with_all_gradients(case, monkeypatch):
    x = torch.randn(3, 4, *case[1])
    expected = expected_of(made("reference", case), x)
    layer = made("auto", case)
    # where a gate subtracts large gradients, the definition, which mixes weights, cancels less than any other way
    of_cpu = zip(*roundings(results, layer, x), strict=True)
    pretend(monkeypatch)
    found = zip(results(layer, x), expected, of_cpu, strict=True)
    for actual, (hi, sums, lows), others in found:
        assert_within_budget(actual, hi, [*lows, *others], sums=sums)


def narrow(layer, x):
    """Computes under autocast, except in float64, of which autocast takes nothing."""
    with torch.autocast("cpu"):
        return layer(x).to(torch.promote_types(x.dtype, torch.float32))


@every_case
def test_autocast_rounds_as_its_dtype_does(case, monkeypatch):
    x = torch.randn(3, 4, *case[1])
    hi, lows = references(narrow, made("reference", case), x)
    layer = made("auto", case)
    of_cpu = narrow(layer, x)
    pretend(monkeypatch)
    assert_within_budget(narrow(layer, x), hi, [*lows, of_cpu])


@pytest.mark.parametrize(
    "name", ["sums over axes", "groups of channels", "all pairs", "a mask of each image"]
)
def test_some_images_at_a_time_are_the_same(name, as_on_a_gpu, monkeypatch):
    case = CASES[name]
    layer, x = made("auto", case), torch.randn(5, 4, *case[1])
    expected = results(layer, x)
    exact = results(layer.double(), x.double())
    layer.float()
    monkeypatch.setattr(torch_modes, "PIECE_BYTES", 20_000)
    for actual, whole, hi in zip(results(layer, x), expected, exact, strict=True):
        most = (whole.double() - hi).abs().max() + torch.finfo(torch.float32).eps * hi.abs().max()
        assert (actual.double() - hi).abs().max() <= 4 * most


@every_case
def test_further_derivatives_are_those_of_the_reference(case, as_on_a_gpu):
    x = torch.randn(2, 4, *case[1], dtype=torch.float64)
    found = []
    for impl in ("auto", "reference"):
        layer = made(impl, case).double()
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(leaf).square().sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), leaf)[0])
    limit = 1e4 * torch.finfo(torch.float64).eps * found[1].abs().max()
    assert (found[0] - found[1]).abs().max() <= limit


def test_positions_in_one_part_are_noticed_where_two_are_needed(as_on_a_gpu, monkeypatch):
    """Negative control: scores near −100 that differ by one need the digits that a leading part leaves out."""
    module = importlib.import_module("convattn.functional.content")
    encoding = Quadratic(2, 2, centres=[[200.0, 3.0], [-150.0, 60.0]], sharpness=0.0025)
    layer = RelativeAttention2d(4, 6, num_heads=2, encoding=encoding, content=APART)
    with torch.no_grad():
        layer.content.query.weight.zero_()  # positions alone
    x = torch.randn(1, 4, 12, 12)
    layer.impl = "reference"
    hi, lows = references(narrow, layer, x)
    layer.impl = "auto"
    assert_within_budget(narrow(layer, x), hi, lows)
    right = module.in_parts
    monkeypatch.setattr(module, "in_parts", lambda *given: right(*given[:2], 1))
    with pytest.raises(AssertionError, match="error"):
        assert_within_budget(narrow(layer, x), hi, lows)


def test_a_kernel_takes_the_dtype_and_the_parts_that_its_width_allows(as_on_a_gpu):
    device, small, large = torch.device("cpu"), [Axis(range(16), 16)] * 2, [Axis(range(64), 64)] * 2
    half = torch.bfloat16
    for form, axes, width, expected in [
        (OneHot, small, 32, Precision(half, 2)),
        (OneHot, small, 400, Precision(half, 2)),  # torch has another kernel for that
        (OneHot, large, 64, Precision(half, 1)),  # two parts would be 320 channels
        (SecondDegree, large, 64, Precision(half, 3, 2)),
        (SecondDegree, [Axis(range(300), 300)], 64, Precision(torch.float32)),
        (Masked, small, 32, Precision(half, 1)),
    ]:
        content = ContentScores(Content(key_width=width), 4, 2, 0)
        scores = form(Heads(Quadratic(2, 2), content), tuple(axes))
        assert scores.precision(half, device) == expected, (form, width)
        assert scores.precision(torch.float32, device).dtype == torch.float32


@pytest.mark.parametrize("kind", ["quadratic", "shift"])
def test_a_plan_says_what_reaches_the_kernel(kind, as_on_a_gpu):
    layer = RelativeAttention2d(
        64, 64, num_heads=9, encoding=kind, content=Content(key_width=16), dtype=torch.bfloat16
    )
    form = {"quadratic": "a channel for each key along each axis in bfloat16, in 2 parts"}
    assert form.get(kind, "a mask") in layer.plan((2, 64, 16, 16)).reason
    wide = RelativeAttention2d(400, 8, num_heads=2, content=Content(key_width=400)).bfloat16()
    assert "wider than the 256 channels of torch's flash kernel" in wide.plan((2, 400, 8, 8)).reason


def test_a_layer_reads_no_value_of_a_gate_or_of_heads(as_on_a_gpu):
    """Hard heads that learn and closed gates are computed like others: to look at them is to wait."""
    hard = RelativeAttention2d(4, 6, num_heads=2, encoding=Quadratic(2, 2, sharpness=800.0))
    assert hard.plan((1, 4, 5, 7)).path == "separable"
    gated = RelativeAttention2d(4, 6, 3, padding=1, encoding="shift", gate="tanh").eval()
    with torch.no_grad():
        assert gated.plan((1, 4, 5, 7)).path == "content"
        assert not gated.needs_content()


def test_a_plan_says_where_scores_are_read(as_on_a_gpu):
    hard = Quadratic(2, 2, centres=[[0.0, 0.0], [1.0, -1.0]], sharpness=800.0)
    for encoding, impl, reads in [
        ("distance", "fourier", True),
        (hard, "shift", True),
        (hard, "auto", False),
        ("distance", "dense", False),
    ]:
        layer = RelativeAttention2d(4, 6, num_heads=2, encoding=encoding, impl=impl)
        reason = layer.plan((1, 4, 5, 7)).reason
        assert ("no CUDA graph holds it" in reason) == reads, (impl, reason)


def test_function_transforms_see_all_images_at_once(as_on_a_gpu, monkeypatch):
    """A checkpoint of some images cannot be mapped over."""
    layer, x = made("auto", CASES["sums over axes"]), torch.randn(3, 2, 4, 5, 7)
    expected = torch.stack([layer(images) for images in x])
    monkeypatch.setattr(torch_modes, "PIECE_BYTES", 1)
    found = torch.func.vmap(layer)(x)
    limit = 64 * torch.finfo(torch.float32).eps * expected.abs().max()
    assert (found - expected).abs().max() <= limit
    torch.func.grad(lambda given: layer(given).sum())(x[0])
