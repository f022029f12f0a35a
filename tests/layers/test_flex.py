"""The FlexAttention path: its values on the CPU by the contract, its gradients where there is CUDA."""

import copy
import subprocess
import sys
from functools import partial

import pytest
import torch
from tests.layers.layer_cases import CaseContract, LayerCase

from convattn.budget import assert_within_budget, references
from convattn.errors import ArgumentError, DeviceError
from convattn.functional import flex
from convattn.layers import (
    Content,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)
from convattn.testing.contracts import stir

CASES = [
    LayerCase("learned_axial", options={"content": True, "impl": "flex"}),
    LayerCase(
        "learned_table",
        options={"content": Content(key_width=3, content_bias=False), "impl": "flex"},
    ),
    LayerCase("distance", options={"content": Content(key_width=17), "impl": "flex"}),
    LayerCase(
        "quadratic",
        options={
            "content": Content(key_width=3, project_position=False, query_bias=True),
            "impl": "flex",
        },
    ),
    LayerCase(
        "distance", RelativeAttention1d, {"content": Content(position=False), "impl": "flex"}
    ),
    LayerCase(
        "learned_axial", RelativeAttention3d, {"content": True, "head_width": 1, "impl": "flex"}
    ),
]


class TestFlexAttention(CaseContract):
    """The contract without gradients, which torch has on CUDA only."""

    cases = CASES

    @pytest.fixture(autouse=True)
    def _without_gradients(self):
        with torch.no_grad():
            yield

    @pytest.mark.skip(
        reason="needs gradients in float64, which FlexAttention does not have on the CPU"
    )
    def test_gradcheck(self):
        """Finite differences."""

    @pytest.mark.skip(reason="needs gradients, which FlexAttention does not have on the CPU")
    def test_modes_and_earlier_calls_change_nothing(self):
        """Training without dropout, calls without gradients and what is kept of them leave every bit as it is."""

    @pytest.mark.cuda
    def test_gradients_are_those_of_the_definition(self):
        """On CUDA, against the reference path on the CPU in float64; the same in float32 says what rounding does."""
        layer, x = self.made(), self.images()

        def gradients(impl, layer, x):
            made = copy.deepcopy(layer)
            made.impl = impl
            images = x.detach().requires_grad_()
            with torch.enable_grad():
                made(images).square().sum().backward()
            found = {
                "x": images.grad,
                **{name: parameter.grad for name, parameter in made.named_parameters()},
            }
            return {
                name: gradient.cpu() for name, gradient in found.items() if gradient is not None
            }

        hi, lows = references(partial(gradients, "reference"), layer, x)
        for name, gradient in gradients("flex", layer.cuda(), x.cuda()).items():
            assert_within_budget(
                gradient, hi[name], [low[name] for low in lows], f"gradient of {name}"
            )


def layer(**options):
    torch.manual_seed(3)
    return stir(
        RelativeAttention2d(3, 5, 2, "quadratic", content=True, **{"impl": "flex", **options})
    ).eval()


def images(*sizes):
    return torch.randn(2, 3, *(sizes or (5, 7)), generator=torch.Generator().manual_seed(5))


def test_a_table_read_one_place_off_is_rejected(monkeypatch):
    """Negative control of the class above."""
    contract = TestFlexAttention()
    contract.case = CASES[0]
    right = flex._along

    def one_place_off(axes, number):
        place = right(axes, number)
        return lambda query, key: (place(query, key) - 1).clamp(min=0)

    with torch.no_grad():
        contract.test_output_is_attention_by_definition(torch.float32)
        monkeypatch.setattr(flex, "_along", one_place_off)
        with pytest.raises(AssertionError, match="result: error"):
            contract.test_output_is_attention_by_definition(torch.float32)


def test_gradients_are_refused_on_the_cpu():
    made, x = layer(), images()
    message = r"FlexAttention has no gradients on the CPU: call the layer under torch.no_grad\(\), or set impl to"
    with pytest.raises(DeviceError, match=message):
        made(x)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name.startswith("encoding"))
    with pytest.raises(DeviceError, match=message):
        made(x)
    made.requires_grad_(False)
    with pytest.raises(DeviceError, match=message):
        made(x.requires_grad_())


def test_what_follows_the_weights_learns_on_the_cpu_all_the_same():
    made, x = layer().requires_grad_(False), images()
    made.values.requires_grad_()

    def gradient(layer, x, impl="reference"):
        layer = copy.deepcopy(layer)
        layer.impl = impl
        return torch.autograd.grad(layer(x).square().sum(), layer.values.weight)[0]

    assert_within_budget(gradient(made, x, "flex"), *references(gradient, made, x))


def test_other_devices_are_refused():
    with pytest.raises(
        DeviceError,
        match="FlexAttention runs on CUDA, and on the CPU without gradients, but the images are on meta",
    ):
        flex._require_device([torch.zeros(2, 3, device="meta")])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            RelativeAttention2d,
            {},
            "impl must be one of auto, dense, .* without content, but is 'flex'",
        ),
        (
            RelativeAttention2d,
            {"content": True, "dropout": 0.1},
            'impl must be "auto", "content" or "reference" with content and dropout, but is \'flex\'',
        ),
        (
            RelativeAttention2d,
            {"gate": "sigmoid"},
            'impl must be "auto", "content" or "reference" with a gate, but is \'flex\'',
        ),
    ],
    ids=["without content", "dropout", "gate"],
)
def test_layers_that_flex_attention_cannot_compute_are_refused(kind, options, message):
    with pytest.raises(ArgumentError, match=message):
        kind(3, 5, 2, "quadratic", impl="flex", **options)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_plan_names_the_path_and_never_takes_it_by_itself(device):
    plan = layer().plan((2, 3, 5, 7), device=device)
    assert plan.path == "flex"
    assert plan.reason.startswith(
        "requested, in one kernel" if device == "cuda" else "requested, without gradients"
    )
    automatic = layer(impl="auto").plan((2, 3, 5, 7), device=device)
    assert automatic.path == "content"
    assert plan.flops == automatic.flops


def test_plan_knows_that_the_kernel_makes_no_weights():
    shape, made = (2, 3, 64, 64), layer()
    weights = 2 * 2 * 64**4
    assert made.plan(shape, device="cuda").bytes < weights < made.plan(shape, device="cpu").bytes


COMPILED = """
import torch
from convattn.layers import RelativeAttention2d

torch.manual_seed(0)
layer = RelativeAttention2d(3, 5, 2, "learned_axial", content=True, impl="flex")
compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
worst = 0.0
with torch.no_grad():
    for sizes in ((5, 7), (6, 9)):
        x = torch.randn(2, 3, *sizes)
        worst = max(worst, (compiled(x) - layer(x)).abs().max().item())
print(worst)
"""


@pytest.mark.slow
def test_layers_compile_to_one_graph():
    """In a process of its own: the type checks of the test run would break the graph. Outputs are of size one."""
    command = [sys.executable, "-c", COMPILED]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(found.stdout.splitlines()[-1]) <= 8 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    ("share", "dropout"), [(torch.full((2,), 0.5), 0.0), (None, 0.1)], ids=["gate", "dropout"]
)
def test_scores_refuse_the_path_where_it_cannot_weight_them(share, dropout):
    made = RelativeAttention2d(3, 5, 2, "quadratic", content=True)
    axes = made.geometry.axes((5, 7))
    maps = made.values.maps()
    message = (
        'impl must be "auto", "content" or "reference" with a gate or dropout, but is \'flex\''
    )
    with pytest.raises(ArgumentError, match=message):
        made.content.attend(
            torch.randn(1, 3, 5, 7),
            axes,
            made.encoding,
            maps,
            1,
            share=share,
            dropout=dropout,
            path="flex",
        )
