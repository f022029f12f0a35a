"""Layers on long sequences: what they choose, and that nothing grows with the square of the length."""

import pytest
import torch
from tests.layers.layer_cases import by_reference

from convattn.budget import assert_within_budget, references
from convattn.encodings import Quadratic
from convattn.layers import RelativeAttention1d, RelativeAttention2d

LONG = 65_536
"""Pixels; a float for each pair would take 16 GiB per head."""


def layer(*centres, sharpness=1.0, **options):
    torch.manual_seed(0)
    encoding = Quadratic(
        len(centres), 1, centres=[[float(centre)] for centre in centres], sharpness=sharpness
    )
    return RelativeAttention1d(3, 5, num_heads=len(centres), encoding=encoding, **options)


@pytest.mark.parametrize("impl", ["auto", "separable"])
def test_soft_heads_run_in_bands(impl):
    soft, x = layer(-1, 0, 1.5, 40, impl=impl), torch.randn(2, 3, 601)
    plan = soft.plan(x.shape)
    assert plan.path == "separable"
    assert plan.reason.endswith("in bands of up to 13 displacements")
    rows = soft.values.weight.double().abs().sum((0, 2)).max().item()
    assert plan.bound == 2 * rows * torch.finfo(torch.float32).eps / 64
    assert_within_budget(soft(x), *by_reference(soft, x))
    soft, x = soft.double(), x.double()
    with torch.autocast("cpu"):
        y = soft(x)
    assert_within_budget(y, *by_reference(soft, x))


QUERIES = [0, 9_001, LONG - 20_001, LONG - 1]


def gradients_of_definition(layer, x, v):
    """Gradients of ⟨v, y⟩, the output y being that of some queries, from scores of all keys."""
    centres, sharpness = layer.encoding.centres, layer.encoding.root_sharpness.square() / 2
    displacements = (
        torch.arange(LONG, dtype=x.dtype) - torch.tensor(QUERIES, dtype=x.dtype)[:, None]
    )
    weights = (-sharpness[:, None, None] * (displacements - centres[:, None]) ** 2).softmax(-1)
    means = weights @ x[0].mT
    y = torch.einsum("hoi,hqi->oq", layer.values.weight, means) + layer.bias[:, None]
    return torch.autograd.grad((v * y).sum(), [x, *layer.parameters()])


@pytest.mark.parametrize("centres", [(-1, 0, 1), (-9_000, 20_000)], ids=str)
@pytest.mark.parametrize("sharpness", [1.0, 128.0])
def test_cost_and_gradients_of_long_sequences(centres, sharpness):
    """The plan's cost is linear, and the call does what it says: one pair table alone would not fit."""
    long = layer(*centres, sharpness=sharpness)
    plans = [
        long.plan((1, 3, size)) for size in (LONG, 2 * LONG, 4 * LONG)
    ]  # ends, where fewer keys are seen, fit in
    assert {plan.path for plan in plans} == {"shift" if sharpness == 128 else "separable"}
    for short, double, whole in ([plan.flops for plan in plans], [plan.bytes for plan in plans]):
        assert whole - double <= 2.05 * (double - short)
    x, v = torch.randn(1, 3, LONG, requires_grad=True), torch.randn(5, len(QUERIES))
    leaves = {"x": x, **dict(long.named_parameters())}
    loss = (v * long(x)[0, :, QUERIES]).sum()
    actual = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    hi, lows = references(gradients_of_definition, long, x, v)
    for name, found, exact, *rounded in zip(leaves, actual, hi, *lows, strict=True):
        assert_within_budget(found, exact, rounded, name)


def test_hard_heads_that_lead_out_may_be_requested_as_a_convolution():
    hard = layer(-1, 0, 9, sharpness=128.0, impl="shift")
    x = torch.randn(1, 3, LONG)

    def shifted(hard, x):
        padded = torch.nn.functional.pad(x, (1, 9), mode="replicate")
        parts = [
            matrix @ padded[..., start : start + LONG]
            for matrix, start in zip(hard.values.maps(), (0, 1, 10), strict=True)
        ]
        return sum(parts) + hard.bias[:, None]

    with torch.no_grad():
        assert_within_budget(hard(x), *references(shifted, hard, x))


def test_wide_heads_are_transformed_and_any_encoding_is_one_axis():
    assert layer(0, 1, sharpness=1e-6).plan((1, 3, 4096)).path == "fourier"
    torch.manual_seed(0)
    other = RelativeAttention1d(3, 5, num_heads=2, encoding="generalized_quadratic")
    assert "one axis, in bands of" in other.plan((1, 3, 1024)).reason


@pytest.mark.parametrize("axis", [0, 1], ids=["column", "row"])
@pytest.mark.parametrize("encoding", ["quadratic", "generalized_quadratic"])
def test_images_of_one_row_or_column_are_sequences(axis, encoding):
    """As convolutions of sound often are: a kernel along one axis, with a stride."""
    sizes = [1, 1]
    sizes[axis] = 1031
    if encoding == "quadratic":
        centres = torch.zeros(3, 2)
        centres[:, axis] = torch.tensor([-2.0, 0.3, 5.0])
        encoding = Quadratic(3, 2, centres=centres.tolist(), sharpness=2.0)
    torch.manual_seed(0)
    line = RelativeAttention2d(
        3, 5, num_heads=3, encoding=encoding, stride=[1 + 2 * (axis == 0), 1 + 2 * (axis == 1)]
    )
    x = torch.randn(2, 3, *sizes, requires_grad=True)
    assert "in bands of" in line.plan(x.shape).reason
    assert_within_budget(line(x), *by_reference(line, x))


def test_heads_too_wide_for_bands_are_computed_whole_where_no_transforms_are_wanted():
    wide, x = layer(0, 5, sharpness=1e-6, impl="separable"), torch.randn(2, 3, 601)
    plan = wide.plan(x.shape)
    assert (plan.path, plan.reason, plan.bound) == ("separable", "requested", 0.0)
    assert_within_budget(wide(x), *by_reference(wide, x))


def test_heads_that_cannot_be_looked_at_are_computed_whole():
    """Under `torch.vmap` over the centres every member of the batch has other bands."""
    line, x = layer(-1, 0, 1.5), torch.randn(2, 3, 601)
    known = {name: parameter.detach() for name, parameter in line.named_parameters()}
    several = known["encoding.centres"] + torch.tensor([0.0, 3.0, -7.0])[:, None, None]

    def output(centres):
        return torch.func.functional_call(line, {**known, "encoding.centres": centres}, x)

    for y, centres in zip(torch.vmap(output)(several), several, strict=True):
        with torch.no_grad():
            line.encoding.centres.copy_(centres)
        assert_within_budget(y, *by_reference(line, x))
