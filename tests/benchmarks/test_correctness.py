"""Contenders that compute the layer's function are told from those that do not quite."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.cases.layer import FORMS, LayerCase, build_convolution, build_layer
from benchmarks.correctness import Truth, judge, some_queries
from benchmarks.setting import Setting
from convattn.errors import ArgumentError, DeviceError, UnknownNameError

CPU = torch.device("cpu")
SETTING = Setting()
KINDS = ("quadratic", "generalized_quadratic", "distance", "hard", "content")


def tiny(kind="quadratic", **changes):
    case = LayerCase(
        name="tiny", kind=kind, channels=10, heads=9 if kind == "hard" else 3, size=11, batch=3
    )
    return replace(case, **changes)


def checked(case, form, setting=SETTING):
    """Holds a form against the definition, on fewer images than the case has."""
    layer, images = (
        setting.place(build_layer(case), training=case.training),
        setting.draw((2, 10, 11, 11), seed=0),
    )
    truth = Truth(layer, images, some_queries(case.size**2, CPU), gradients=case.training)
    return truth.check(form, form.layer)


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("name", ["convattn", "reference", "published", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_honest_contenders_pass(kind, name, training):
    case = tiny(kind, training=training)
    form = FORMS[name](case, SETTING)
    assert form.same_function
    check = checked(case, form)
    assert check.passed, check


@pytest.mark.parametrize("name", ["convattn", "reference", "published", "sdpa"])
def test_honest_contenders_pass_in_bfloat16(name):
    setting, case = Setting(dtype="bfloat16"), tiny()
    check = checked(case, FORMS[name](case, setting), setting)
    assert check.passed, check


def test_convolution_passes_as_hard_heads_only():
    hard, soft = (FORMS["conv"](tiny(kind), SETTING) for kind in ("hard", "quadratic"))
    assert checked(tiny("hard"), hard).passed
    assert hard.same_function
    assert not soft.same_function
    assert not checked(tiny(), soft).passed


class Perturbed(nn.Module):
    """Changes what an honest module returns, or the gradient that goes back through it."""

    def __init__(self, honest, change):
        super().__init__()
        self.honest, self.change = honest, change

    def forward(self, x):
        return self.change(self.honest(x))


def leak(y):
    return (1 - 1e-5) * y + 1e-5 * y.mean((-2, -1), keepdim=True)


def one_row(y):
    return torch.cat([y[..., :1, :] * 1.0001, y[..., 1:, :]], dim=-2)


def gradient_only(y):
    wrong = y * (1 + 1e-4)
    return wrong + (y - wrong).detach()


FAULTS = {
    "leak": leak,
    "one border row": one_row,
    "half precision": lambda y: y.bfloat16().float(),
    "not finite": lambda y: y / (y != y.flatten()[0]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_perturbed_output_is_rejected(fault):
    case = tiny(size=11)
    honest = FORMS["convattn"](case, SETTING)
    check = checked(case, replace(honest, module=Perturbed(honest.module, FAULTS[fault])))
    assert not check.passed
    assert check.worst == "output"


def test_perturbed_gradient_is_rejected():
    case = tiny(training=True)
    honest = FORMS["convattn"](case, SETTING)
    check = checked(case, replace(honest, module=Perturbed(honest.module, gradient_only)))
    assert not check.passed
    assert check.worst.startswith("gradient of ")


def test_missing_gradient_is_rejected():
    one = {"output": torch.ones(2, dtype=torch.float64)}
    both = {**one, "gradient of images": one["output"]}
    check = judge(one, both, [both] * 4)
    assert not check.passed
    assert "gradient of images" in check.worst


def test_other_shape_is_rejected():
    one = {"output": torch.ones(2, dtype=torch.float64)}
    check = judge({"output": torch.ones(1)}, one, [{"output": torch.ones(2)}] * 4)
    assert (check.passed, check.error) == (False, float("inf"))


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (64, 64), (65, 64), (50176, 64)])
def test_queries_are_distinct_and_hold_the_corners(count, expected):
    queries = some_queries(count, CPU).tolist()
    assert len(set(queries)) == len(queries) == expected
    assert (queries[0], queries[-1]) == (0, count - 1)


def test_case_gives_the_same_layer_and_images_every_time_and_draws_nothing_outside():
    state = torch.get_rng_state()
    first, second = (build_layer(tiny()).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(SETTING.draw((2, 3), seed=5), SETTING.draw((2, 3), seed=5))
    assert torch.equal(build_convolution(tiny()).weight, build_convolution(tiny()).weight)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ({"dtype": "float23"}, UnknownNameError, "unknown dtype 'float23': did you mean 'float32'"),
        ({"device": "tpu"}, ArgumentError, "device must be cpu, cuda or cuda:N, but is 'tpu'"),
        ({"device": "meta"}, ArgumentError, "device must be cpu, cuda or cuda:N, but is 'meta'"),
        ({"device": "cuda:99"}, DeviceError, "device 'cuda:99' is not there"),
    ],
)
def test_wrong_setting_is_refused(names, error, message):
    with pytest.raises(error, match=message):
        Setting(**names)
