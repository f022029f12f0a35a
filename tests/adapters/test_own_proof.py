"""The proof of this library's own layers: what they compute in other steps than the definition is no refusal."""

import pytest
import torch

from convattn.heads.reading import own_weights, prove_own
from convattn.layers import RelativeAttention2d


def layer_of(seed, dtype, far=1.0):
    torch.manual_seed(seed)
    layer = RelativeAttention2d(4, 5, num_heads=3, encoding="quadratic", content=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(far * torch.randn_like(parameter))
    return layer.to(dtype), torch.randn(2, 4, 6, 9).to(dtype)


def proof_of(layer, x, y):
    """Proves the weights of the first image of x with the output y."""
    return prove_own(layer, x[:1], y[:1], own_weights(layer, x)[:1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_content_is_proved_in_every_dtype(dtype):
    for seed in range(10):
        layer, x = layer_of(seed, dtype)
        proof = proof_of(layer, x, layer(x))
        assert proof.error <= proof.budget, seed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@torch.no_grad()
def test_control_what_another_layer_computes_is_not(dtype):
    """One number of the keys that is off by a thousand roundings makes weights that are not the layer's.

    It is the number on which the output depends most: others may hardly matter.
    """
    for seed in range(10):
        layer, x = layer_of(seed, dtype)
        other, _ = layer_of(seed, dtype)
        keys = other.content.key.weight
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(other(x).square().sum(), keys)
        keys.view(-1)[(keys * gradient).abs().argmax()] *= 1 + 1000 * torch.finfo(dtype).eps
        proof = proof_of(layer, x, other(x))
        assert proof.error > proof.budget, seed
