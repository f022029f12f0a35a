"""The proof of a fused kernel: weights × values and the kernel's result, each against float64."""

import pytest
import torch
from torch.nn import functional

from convattn.heads.kernels import FusedKernel


@pytest.fixture
def parts():
    torch.manual_seed(0)
    made = [torch.randn(2, 3, 7, 5) for _ in "qkv"]
    made[2][..., 0] = 1  # in this channel, weights that are all off by c make the product off by 7 c
    return made


def exact(parts):
    return functional.scaled_dot_product_attention(*(part.double() for part in parts))


def proof_of(parts, *, kernel_off=0.0, weights_off=0.0):
    """Proves a kernel whose first channel, and weights whose product there, are off by so many budgets."""
    budget = FusedKernel(exact(parts).float(), *parts).settle(2).made[1].budget
    out = exact(parts)
    out[..., 0] += kernel_off * budget
    kernel = FusedKernel(out.float(), *parts)
    proof = kernel.proof(kernel.weights().double() + weights_off * budget / 7, 1)
    assert proof.budget == budget
    return proof


def test_two_right_results_may_be_off_in_opposite_directions(parts):
    parts[2][..., 1:] = 0  # values that do not make the error of the weights larger elsewhere
    proof = proof_of(parts, kernel_off=0.6, weights_off=-0.6)
    assert 0.5 * proof.budget < proof.error <= proof.budget


@pytest.mark.parametrize("off", [{"kernel_off": 1.5}, {"weights_off": 1.5}], ids=["kernel", "weights"])
def test_control_either_side_beyond_the_budget_is_found(parts, off):
    proof = proof_of(parts, **off)
    assert proof.error > proof.budget


def test_nan_is_not_within_the_budget(parts):
    proof = proof_of(parts, kernel_off=torch.nan)
    assert not proof.error <= proof.budget
