"""Layers on a CUDA device: the contract of every layer, whose definition is computed on the CPU in float64."""

import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from itertools import product

import pytest
import torch
from tests.layers.layer_cases import (
    LAYERS,
    VALUES_FIRST,
    CaseContract,
    LayerCase,
    by_path,
    by_reference,
    cases_of,
    images,
    one_of_each,
)
from tests.layers.test_execution import COMPILED
from tests.testing.attention_contract import GEOMETRIES
from tests.testing.dense import as_dtype
from tests.testing.float32 import float32_by
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from convattn.budget import LEAST_ROUNDINGS, assert_within_budget
from convattn.encodings import Quadratic
from convattn.functional import separable
from convattn.layers import Content, RelativeAttention1d, RelativeAttention2d

NARROW = (torch.bfloat16, torch.float16)
CLAUSES = [
    *product(["output_is_attention_by_definition"], (torch.float32, torch.float64, *NARROW)),
    *product(["any_geometry_is_attention_by_definition"], GEOMETRIES.values()),
    *product(["autocast_keeps_scores_and_softmax_precise"], NARROW),
    *product(["small_batches"], (0, 1)),
    *product(["attention_weights_are_those_of_the_definition"], ({}, GEOMETRIES["circular"])),
    ("groups_are_blocks_of_the_matrices",),
    ("one_pixel",),
    ("channels_last_input",),
    ("input_that_is_a_view",),
    ("another_size_needs_no_new_layer",),
    ("gradients_are_those_of_the_definition",),
    ("gradcheck",),
    ("modes_and_earlier_calls_change_nothing",),
    ("state_dict_and_copies_carry_everything",),
]
"""Clauses of the contract, and the argument of each."""


def contract(case, device):
    made = CaseContract()
    made.case, made.device = case, device
    return made


def hold(check, cases):
    """Goes through all cases and says which of them failed, and how."""
    failures = []
    for case in cases:
        try:
            check(case)
        except Exception as error:  # noqa: BLE001 - told below, together
            lines = str(error).splitlines() or [""]
            failures.append(f"{case}: {type(error).__name__}: {lines[0]}")
    assert not failures, f"{len(failures)} of {len(cases)} cases:\n" + "\n".join(failures)


def cases_on(device, clause):
    """Chooses the cases of a clause; on the CPU, where all have other tests, sequences with and without content."""
    cases = cases_of(clause, LAYERS)
    if device.type == "cpu":
        sequences = [case for case in cases if case.kind is RelativeAttention1d]
        return one_of_each(sequences, lambda case: "content" in case.options)
    return cases


@pytest.mark.parametrize(
    "clause", CLAUSES, ids=lambda clause: " ".join(map(str, clause)).replace("torch.", "")
)
def test_every_layer_keeps_its_contract(device, clause):
    name, *arguments = clause
    name = f"test_{name}"

    def check(case):
        getattr(contract(case, device), name)(*arguments)

    hold(check, cases_on(device, name))


@pytest.mark.parametrize("clause", ["output_is_attention_by_definition", "gradients"])
def test_heads_that_mix_channels_of_their_own_keep_it(device, clause, monkeypatch):
    monkeypatch.setattr(separable, "OWN_CHANNELS", 0)

    def check(case):
        held = contract(case, device)
        if clause == "gradients":
            held.test_gradients_are_those_of_the_definition()
        else:
            held.test_output_is_attention_by_definition(torch.float32)

    hold(check, VALUES_FIRST)


def larger():
    """Yields layers and images of sizes at which other code runs: tiles, bands, transforms, many channels."""
    torch.manual_seed(0)
    yield "tiles", RelativeAttention2d(17, 19, 3, padding=1), images(31, 29, batch=5, channels=17)
    yield (
        "transforms",
        RelativeAttention2d(3, 5, num_heads=2, encoding="generalized_quadratic"),
        images(37, 31),
    )
    near = Quadratic(2, 1, centres=[[0.0], [1.0]], sharpness=0.5)
    yield (
        "bands",
        RelativeAttention1d(4, 3, num_heads=2, encoding=near),
        images(1031, batch=1, channels=4),
    )
    yield (
        "values first",
        RelativeAttention2d(64, 64, num_heads=8, encoding="quadratic", head_width=2),
        images(11, 13, channels=64),
    )
    for impl in ("content", "quadratic"):
        content = Content(key_width=8)
        yield (
            f"content on the path {impl}",
            RelativeAttention2d(16, 16, 9, padding=4, num_heads=4, content=content, impl=impl),
            images(13, 11, channels=16),
        )


def test_larger_layers_compute_their_definition(device):
    def check(case):
        _, layer, x = case
        with torch.no_grad():
            hi, lows = by_reference(layer, x)
            there, y = layer.to(device), x.to(device)
            bound = there.plan(x.shape).bound * x.abs().max().item()
            assert_within_budget(there(y), hi, [*lows, lows[0] + bound])

    hold(check, list(larger()))


class Tf32(TorchDispatchMode):
    """Computes products of float32 as tensor cores do in TF32: from numbers rounded to ten bits of mantissa."""

    products = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::convolution")

    def __torch_dispatch__(self, func, _, args=(), kwargs=None):
        if func.name().split(".")[0] in self.products:
            args = tree_map(rounded, args)
        return func(*args, **(kwargs or {}))


def rounded(part):
    if not isinstance(part, torch.Tensor) or part.dtype != torch.float32:
        return part
    bits = part.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def moved(x, seed):
    """Moves the last digit that TF32 has, of about half of the numbers."""
    generator = torch.Generator().manual_seed(seed)
    return x * (1 + 2**-10 * torch.rand(x.shape, generator=generator).round())


def tf32_roads(layer, x):
    """Computes a layer by definition with products in TF32, from several last digits."""
    results = []
    for seed in range(LEAST_ROUNDINGS):
        other = as_dtype(layer, torch.float32)
        with torch.no_grad(), Tf32():
            for place, parameter in enumerate(other.parameters()):
                parameter.copy_(moved(parameter, 1000 * seed + place))
            results.append(by_path(other, "reference", moved(x, seed)))
    return results


def test_float32_by_tf32_loses_no_more_than_its_digits(device):
    def check(case):
        held = contract(case, device)
        layer, x = held.made(), held.images()
        with torch.no_grad():
            hi = held.dense(as_dtype(layer, torch.float64), x.double())
            there, y = held.on_device(layer, x)
            with float32_by("tf32", "tf32"):
                assert_within_budget(there(y), hi, tf32_roads(layer, x))

    hold(check, cases_on(device, "test_output_is_attention_by_definition"))


def test_fewer_digits_than_those_of_tf32_are_found():
    """Negative control, on the CPU."""
    held = contract(LayerCase("quadratic"), torch.device("cpu"))
    layer, x = held.made(), held.images()
    with torch.no_grad():
        hi = held.dense(as_dtype(layer, torch.float64), x.double())
        lows = tf32_roads(layer, x)
        assert_within_budget(layer(x), hi, lows)
        with pytest.raises(AssertionError, match="above the budget"):
            assert_within_budget(layer(x * (1 - 2**-6)), hi, lows)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def output_and_gradients(layer, x):
    x = x.detach().requires_grad_()
    y = layer(x)
    learning = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(y.square().sum(), [x, *learning], materialize_grads=True)
    return [y, *found]


def repeats(compute):
    """Tells whether a computation gives the same bits twice."""
    pairs = zip(compute(), compute(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_a_call_repeats_itself_to_the_bit_at_least_where_torch_is_told_to(device):
    def check(case):
        held = contract(case, device)
        compute = partial(output_and_gradients, *held.on_device(held.made(), held.images()))
        if repeats(compute):
            return
        with deterministic():
            try:
                again = repeats(compute)
            except RuntimeError as error:
                again = "deterministic" in str(error)  # torch says that it cannot
        assert again, "other bits in each call, although torch.use_deterministic_algorithms(True)"

    hold(check, one_of_each(LAYERS, lambda case: case.code))


COMPILERS = {"cpu": [], "cuda": ["eager", "inductor"]}
"""Backends by device; those of the CPU have tests of the layers, and inductor takes minutes there."""


@pytest.mark.parametrize(
    ("encoding", "content"),
    [("quadratic", ""), pytest.param("learned_axial", "content", marks=pytest.mark.slow)],
)
def test_compiled_layers_compute_the_same(device, encoding, content):
    """In a process of its own: the type checks of the test run would break the graph. Outputs are of size one."""
    for backend in COMPILERS[device.type]:
        options = [encoding, content, backend, device.type]
        command = [sys.executable, "-c", COMPILED, *options]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{backend}: {ran.stderr}"
        worst = float(ran.stdout.splitlines()[-1])
        assert worst <= 8 * torch.finfo(torch.float32).eps, backend
