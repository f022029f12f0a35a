"""How layers choose their path, and what each path promises of its own."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.layers.layer_cases import by_reference, hard_layer, images
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from convattn.budget import assert_within_budget
from convattn.encodings import Quadratic, Shift
from convattn.errors import ArgumentError, ShapeError
from convattn.functional import fourier, separable
from convattn.functional.shift import ShiftPath
from convattn.layers import RelativeAttention1d, RelativeAttention2d
from convattn.layers.relative import Plan


def test_the_plan_of_a_window_is_the_convolution_that_runs():
    layer = RelativeAttention2d(3, 5, 3, stride=2, padding=1, dilation=2, encoding="shift")
    x, maps = images(7, 11), layer.values.factors()
    path = layer.path(maps, x.shape, x.dtype, x.device)
    assert isinstance(path, ShiftPath)
    assert torch.equal(path.attend(x, maps, layer.bias), layer(x))
    assert path.cost().flops == layer.plan(x.shape).flops == 2 * len(x) * 9 * 3 * 5 * 3 * 5


COUNTED = {
    "shift": {"encoding": "shift", "num_heads": 9},
    "separable": {"num_heads": 9},
    "values first": {"num_heads": 8, "head_width": 2},
    "groups": {"num_heads": 9, "groups": 4},
    "dense": {"encoding": "distance", "num_heads": 4},
    "reference": {"num_heads": 4, "impl": "reference"},
    "content": {"num_heads": 4, "head_width": 16, "content": True},
    "content of whole matrices": {"num_heads": 4, "content": True},
    "content by channels": {"num_heads": 4, "content": True, "impl": "quadratic"},
    "content by definition": {"num_heads": 4, "content": True, "impl": "reference"},
    "a feature of each displacement": {
        "num_heads": 4,
        "content": True,
        "encoding": "learned_table",
    },
    "gate": {"num_heads": 4, "head_width": 16, "content": True, "gate": "sigmoid"},
}


def test_plans_count_the_operations_that_torch_counts():
    """torch counts no softmax, plans no tables of positions, and tiles leave out keys: no more may be between them."""
    x = images(17, 19, channels=64)
    for name, options in COUNTED.items():
        layer = RelativeAttention2d(64, 64, **options)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer(x)
        ratio = counter.get_total_flops() / layer.plan(x.shape).flops
        assert 0.85 < ratio < 1.15, f"{name}: torch counts {ratio:.2f} of the plan"


def test_heads_that_leak_below_rounding_are_convolutions_only_where_nothing_is_learned_of_them():
    layer, x = hard_layer(sharpness=20.0), images(5, 7)
    assert layer.plan(x.shape).path == "separable"
    with torch.no_grad():
        plan = layer.plan(x.shape)
        assert plan.path == "shift"
        row_sums = layer.values.weight.double().abs().sum((0, 2)).max().item()
        assert 0 < plan.bound <= 2 * row_sums * torch.finfo(torch.float32).eps / 8
        assert_within_budget(layer(x), *by_reference(layer, x))


@pytest.mark.parametrize("change", ["sharpness", "half a pixel"])
def test_soft_heads_are_no_convolution(change):
    """Negative control: where heads look at more than one pixel, the path is neither taken nor to be had."""
    layer, x = hard_layer(), images(5, 7)
    with torch.no_grad():
        if change == "sharpness":
            layer.encoding.root_sharpness[3] = 2.0
        else:
            layer.encoding.centres[4, 1] += 0.5
    assert layer.plan(x.shape).path == "separable"
    layer.impl = "shift"
    with pytest.raises(
        ArgumentError,
        match=r"impl='shift' needs hard heads, but more than 1\.5e-08 of a head's attention falls outside one pixel",
    ):
        layer(x)


@pytest.mark.parametrize("rows", [1, 7])
def test_hard_heads_are_found_whatever_the_default_device_is(rows):
    encoding = Quadratic(2, 2, centres=[[0.0, 0.0], [1.0, -1.0]], sharpness=800.0)
    layer, x = RelativeAttention2d(3, 5, num_heads=2, encoding=encoding), torch.randn(2, 3, rows, 5)
    expected = layer(x)
    with torch.device("meta"):
        assert torch.equal(layer(x), expected)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:FutureWarning"
)  # torch's own forward mode
def test_scores_of_hard_heads_may_have_tangents():
    encoding = Quadratic(2, 1, centres=[[0.0], [1.0]], sharpness=800.0)
    layer, x = RelativeAttention1d(3, 5, num_heads=2, encoding=encoding), torch.randn(2, 3, 7)
    assert layer.plan(x.shape).path == "shift"
    numbers = dict(layer.named_parameters())
    with forward_ad.dual_level():
        centres = forward_ad.make_dual(encoding.centres, torch.ones_like(encoding.centres))
        y = functional_call(layer, {**numbers, "encoding.centres": centres}, x)
        assert not forward_ad.unpack_dual(y).tangent.any()
    assert torch.equal(y, layer(x))


def test_heads_far_apart_are_not_one_kernel():
    layer = RelativeAttention1d(
        3, 5, num_heads=2, encoding=Quadratic(2, 1, centres=[[-20.0], [21.0]], sharpness=128.0)
    )
    assert layer.plan((1, 3, 61)).path == "shift"  # two taps, 41 pixels apart
    with torch.no_grad():
        layer.encoding.centres[0] = 0
    assert layer.plan((1, 3, 61)).path == "shift"
    far = RelativeAttention1d(
        3,
        5,
        num_heads=3,
        encoding=Quadratic(3, 1, centres=[[-20.0], [0.0], [21.0]], sharpness=128.0),
    )
    assert far.plan((1, 3, 61)).path == "separable"


@pytest.mark.parametrize("path", ["separable", "dense", "fourier", "reference"])
@pytest.mark.parametrize(
    "wanted", ["x", "values.weight", "encoding.centres", "encoding.root_sharpness"]
)
def test_a_gradient_alone_is_the_one_among_all(path, wanted, monkeypatch):
    """Gradients that are not wanted are not made; the others are the same, in tiles too."""
    monkeypatch.setattr(separable, "SMALL_BYTES", -1)
    layer, x = hard_layer(sharpness=0.3), images(5, 7)
    layer.impl = path

    def gradients():
        found = {"x": x.detach().requires_grad_(x.requires_grad), **dict(layer.named_parameters())}
        y = layer(found["x"])
        inputs = {name: tensor for name, tensor in found.items() if tensor.requires_grad}
        return dict(
            zip(inputs, torch.autograd.grad(y.square().sum(), list(inputs.values())), strict=True)
        )

    x.requires_grad_()
    every = gradients()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == wanted)
    x.requires_grad_(wanted == "x")
    alone = gradients()
    assert list(alone) == [wanted]
    assert torch.equal(alone[wanted], every[wanted])


def test_large_images_are_transformed_and_float64_is_not():
    layer = RelativeAttention2d(3, 5, num_heads=2, encoding="generalized_quadratic")
    assert layer.plan((1, 3, 8, 8)).path == "dense"
    assert layer.plan((1, 3, 64, 64)).path == "fourier"
    plan = layer.double().plan((1, 3, 64, 64))
    assert plan.path == "dense"
    lost = "transforms would lose digits at 100% of the queries"
    assert plan.reason == f"{lost}, so all are computed exactly, some queries at a time"


def test_queries_that_would_lose_digits_are_computed_exactly(monkeypatch):
    """A head that looks far out of the image; without the guard the quotient is wrong."""
    torch.manual_seed(0)
    encoding = Quadratic(2, 2, centres=[[0.0, 0.0], [9.0, 0.0]], sharpness=0.5)
    layer, x = (
        RelativeAttention2d(3, 5, num_heads=2, encoding=encoding, impl="fourier"),
        images(17, 19),
    )
    plan = layer.plan(x.shape)
    assert plan.path == "fourier"
    assert "would lose digits are computed exactly" in plan.reason
    hi, lows = by_reference(layer, x)
    assert_within_budget(layer(x), hi, lows)
    monkeypatch.setattr(fourier, "_NOISE", 1e-9)
    with pytest.raises(AssertionError, match="result: error"):
        assert_within_budget(layer(x), hi, lows)


def test_narrow_heads_take_values_first():
    torch.manual_seed(0)
    layer, x = (
        RelativeAttention2d(64, 64, num_heads=8, head_width=2),
        images(5, 7, channels=64),
    )
    assert layer.plan(x.shape).order == "values"
    assert RelativeAttention2d(64, 64, num_heads=8).plan(x.shape).order == "weights"
    assert_within_budget(layer(x), *by_reference(layer, x))


def test_plan_is_a_record_and_refuses_what_forward_refuses(tmp_path, without_type_checks):
    layer = hard_layer()
    plan = layer.plan((2, 3, 5, 7))
    assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
    assert plan.bound == 0
    assert plan.summary().startswith("shift path, weights first: each head looks at one pixel")
    assert plan.flops == 2 * 2 * 35 * 9 * 3 * 5
    with pytest.raises(
        ShapeError, match=r"x must be of shape \(batch, 3, rows, cols\), but is \(2, 4, 5, 7\)"
    ):
        layer.plan((2, 4, 5, 7))
    assert layer.plan([np.int64(size) for size in (2, 3, 5, 7)]).to_json() == plan.to_json()
    for shape in ((3, 5, 7), (2, 3, -5, 7), (2, 3, 5.0, 7)):
        with pytest.raises(
            ArgumentError, match=r"shape must be 4 whole numbers \(batch, \d+, rows, cols\), but is"
        ):
            layer.plan(shape)


COMPILED = """
import sys, torch
from convattn.layers import RelativeAttention2d

torch.manual_seed(0)
layer = RelativeAttention2d(3, 5, num_heads=2, encoding=sys.argv[1], content=sys.argv[2] == "content")
layer.to(sys.argv[4])
compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=sys.argv[3])
worst = 0.0
for sizes in ((5, 7), (6, 9), (8, 4)):
    x = torch.randn(2, 3, *sizes).to(sys.argv[4])
    worst = max(worst, (compiled(x) - layer(x)).abs().max().item())
print(worst)
"""


@pytest.mark.parametrize(
    ("encoding", "content", "backend"),
    [
        ("quadratic", "", "eager"),
        pytest.param("quadratic", "", "aot_eager", marks=pytest.mark.slow),
        pytest.param("distance", "", "aot_eager", marks=pytest.mark.slow),
        pytest.param("learned_axial", "content", "aot_eager", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_layers_compile_to_one_graph_for_any_size(encoding, content, backend):
    """In a process of its own: the type checks of the test run would break the graph. Outputs are of size one."""
    command = [sys.executable, "-c", COMPILED, encoding, content, backend, "cpu"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(found.stdout.splitlines()[-1]) <= 8 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    "options",
    [
        {"input_dilation": 2, "padding": [(-1, 0), (3, -2)]},
        {"input_dilation": 2, "stride": 2, "padding": 2},
        {"input_dilation": 2, "padding": 1, "padding_mode": "replicate"},
    ],
    ids=str,
)
def test_spread_images_of_hard_heads(options):
    """As no transposed convolution spreads them: with a crop, a stride or other padding than zeros."""
    torch.manual_seed(0)
    encoding = Quadratic(
        9, 2, centres=[[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)], sharpness=128.0
    )
    layer = RelativeAttention2d(
        3, 5, num_heads=9, encoding=encoding, kernel_size=3, **options
    ).eval()
    x = images(5, 7)
    assert layer.plan(x.shape).path == "shift"
    with torch.no_grad():
        assert_within_budget(layer(x), *by_reference(layer, x))


@pytest.mark.parametrize("displacement", [-1000, -7, 6, 7, 1000])
def test_heads_that_look_far_beyond_the_image_look_at_the_nearest_key(displacement):
    layer = RelativeAttention1d(
        2,
        3,
        num_heads=1,
        encoding=Shift(1, 1, displacements=[[displacement]]),
        kernel_size=1,
        stride=2,
        padding=1,
    )
    x = images(7)[:, :2]
    assert layer.plan(x.shape).path == "shift"
    assert_within_budget(layer(x), *by_reference(layer, x))


@pytest.mark.parametrize("name", ["shift", "quadratic", "generalized_quadratic"])
def test_costs_in_the_guide_are_those_of_the_plan(name):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "encoding.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
    told = row.rstrip("| ").rpartition("| ")[2].split(", ")
    layer = RelativeAttention2d(64, 64, 3, padding=1, encoding=name)
    costs = []
    for size in (14, 32, 64, 224):
        convolution = 2 * 9 * 64 * 64 * size**2
        with torch.no_grad():
            costs.append(f"{layer.plan((1, 64, size, size)).flops / convolution:.2g}")
    assert costs == told


def test_a_bound_that_cannot_be_known_is_no_bound():
    layer = RelativeAttention2d(3, 5, num_heads=4, content=True, impl="quadratic")
    known = layer.plan((1, 3, 8, 8))
    assert f"at most {known.bound:.3g} per unit" in known.summary()
    plan = layer.to("meta").plan((1, 3, 8, 8))
    assert math.isnan(plan.bound)
    assert plan.summary().endswith("error           unknown, because weights cannot be read")
