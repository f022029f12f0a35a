"""A user's own attention, and what tests of `watch` do with it."""

import torch
from torch import nn

from convattn.heads.reading import watch


class Tokens(nn.Module):
    """A user's own attention on a 3 × 4 grid after one token."""

    def __init__(self, fused=True, leak=0.0):
        super().__init__()
        self.maps, self.fused, self.leak = nn.Linear(6, 18), fused, leak

    def forward(self, x):
        q, k, v = self.maps(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            weights = torch.softmax(q @ k.mT, -1)
            y = weights.mul_(1 + self.leak) @ v if self.leak else weights @ v
        return y.transpose(1, 2).flatten(2)


def grid(seen):
    return seen.global_layout((3, 4), prefix=1)


def drawn(*size, images=2):
    return torch.randn(images, *size, generator=torch.Generator().manual_seed(1))


def seen_by(network, given, **options):
    calls = []
    watch(network, given, calls.append, **options)
    return calls


def assert_no_hooks(network):
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
