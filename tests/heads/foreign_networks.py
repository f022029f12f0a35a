"""Networks as people write them, of no library's classes, each with the lines by which a user registers it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import einsum, nn
from torch.nn import functional

from convattn.heads.families.window_attention import window_layout

WIDTH, HEADS = 12, 3


class Normed(nn.Module):
    """Attention with its norm inside, as in many small vision transformers."""

    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.attend, self.dropout = nn.Softmax(dim=-1), nn.Dropout(0.1)
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * dim_head, dim), nn.Dropout(0.1))

    def forward(self, x):
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (rearrange(part, "b n (h d) -> b h n d", h=self.heads) for part in qkv)
        weights = self.dropout(self.attend(torch.matmul(q, k.transpose(-1, -2)) * self.scale))
        return self.to_out(rearrange(torch.matmul(weights, v), "b h n d -> b n (h d)"))


class CausalSelfAttention(nn.Module):
    """Attention to earlier tokens, with a mask that is a buffer."""

    def __init__(self, dim, heads, block):
        super().__init__()
        self.n_head = heads
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("bias", torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(c, dim=2)
        k = k.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        q = q.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        v = v.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (k.size(-1) ** -0.5)
        att = functional.softmax(att.masked_fill(self.bias[:, :, :t, :t] == 0, -torch.inf), dim=-1)
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(b, t, c))


class Windows(nn.Module):
    """Attention in windows of 2 × 2, shifted by one, with a mask and relative positions."""

    def __init__(self, dim, heads, grid, shift):
        super().__init__()
        self.heads, self.grid, self.shift = heads, grid, shift
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.relative = nn.Parameter(torch.randn(heads, 4, 4))
        region = torch.zeros(1, *grid, 1)
        if shift:
            region[:, -2:-1] += 1
            region[:, -1:] += 2
            region[:, :, -2:-1] += 3
            region[:, :, -1:] += 6
        region = self.cut(region).squeeze(-1)
        mask = (region[:, None] != region[:, :, None]).float() * -1e9
        self.register_buffer("mask", mask[:, None])

    def cut(self, x):
        return rearrange(x, "b (r s) (c t) d -> (b r c) (s t) d", s=2, t=2)

    def forward(self, x):
        x = x.unflatten(1, self.grid).roll((-self.shift, -self.shift), (1, 2))
        qkv = self.qkv(self.cut(x))
        q, k, v = rearrange(qkv, "n t (k h d) -> k n h t d", k=3, h=self.heads)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.relative
        count = len(self.mask)
        scores = (scores.unflatten(0, (-1, count)) + self.mask).flatten(0, 1)
        y = rearrange(scores.softmax(-1) @ v, "n h t d -> n t (h d)")
        rows = self.grid[0] // 2
        y = rearrange(y, "(b r c) (s t) d -> b (r s) (c t) d", r=rows, s=2, b=len(x))
        return self.proj(y.roll((self.shift, self.shift), (1, 2)).flatten(1, 2))


class MultiQuery(nn.Module):
    """Heads that share one key and one value."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim // heads)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q = self.to_q(x).unflatten(-1, (self.heads, -1))
        k, v = self.to_kv(x).chunk(2, -1)
        weights = (einsum("bnhd,bmd->bhnm", q, k) * k.shape[-1] ** -0.5).softmax(-1)
        return self.to_out(einsum("bhnm,bmd->bnhd", weights, v).flatten(2))


class Torch(nn.Module):
    """A block around torch's attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


class Net(nn.Module):
    """Patches of 4 × 4 by a linear map, tokens before them, and layers of attention."""

    def __init__(self, layers, grid, prefix=0):
        super().__init__()
        self.embed = nn.Linear(48, WIDTH)
        self.first = nn.Parameter(torch.randn(prefix, WIDTH))
        self.positions = nn.Parameter(torch.randn(prefix + grid[0] * grid[1], WIDTH))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, images):
        x = self.embed(rearrange(images, "b c (r p) (s q) -> b (r s) (p q c)", p=4, q=4))
        first = self.first.expand(len(x), -1, -1)
        x = torch.cat([first, x], 1)
        x = x + self.positions
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean(1))


# The values of all heads, (images, heads, tokens, width), of a layer's input


def by_head(values):
    return values.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2).expand(-1, HEADS, -1, -1)


def normed_values(m, x):
    return by_head(m.to_qkv(m.norm(x)).chunk(3, -1)[2])


def causal_values(m, x):
    return by_head(m.c_attn(x).chunk(3, -1)[2])


def multi_query_values(m, x):
    return by_head(m.to_kv(x).chunk(2, -1)[1])


def torch_values(m, x):
    weight, bias = m.in_proj_weight.chunk(3)[2], m.in_proj_bias.chunk(3)[2]
    return by_head(functional.linear(x, weight, bias))


class Foreign(NamedTuple):
    """A network, what its user registers, and what the head of a layer and its output are made of."""

    build: Callable[[], nn.Module]
    cls: type[nn.Module]
    read: Callable[[Any], Any]
    values: Callable[[nn.Module, Any], Any] | None = None
    output: str = ""


def network(make, count, grid, prefix=0):
    torch.manual_seed(0)
    layers = [make() for _ in range(count)]
    return Net(layers, grid, prefix).eval()


SQUARE = (4, 4)
FOREIGN = {
    "norm inside": Foreign(
        partial(network, partial(Normed, WIDTH, HEADS, 4), 2, SQUARE, 1),
        Normed,
        lambda call: call.global_layout((4, 4), prefix=1),
        normed_values,
        "to_out",
    ),
    "causal": Foreign(
        partial(network, partial(CausalSelfAttention, WIDTH, HEADS, 20), 2, (4, 5)),
        CausalSelfAttention,
        lambda call: call.global_layout((4, 5)),
        causal_values,
        "c_proj",
    ),
    "shifted windows": Foreign(
        partial(network, partial(Windows, WIDTH, HEADS, (4, 6), 1), 2, (4, 6)),
        Windows,
        lambda call: window_layout(call.module.grid, (2, 2), (call.module.shift,) * 2),
    ),
    "multi-query": Foreign(
        partial(network, partial(MultiQuery, WIDTH, HEADS), 2, SQUARE, 2),
        MultiQuery,
        lambda call: call.global_layout((4, 4), prefix=2),
        multi_query_values,
        "to_out",
    ),
    "torch": Foreign(
        partial(network, partial(Torch, WIDTH, HEADS), 2, SQUARE),
        nn.MultiheadAttention,
        lambda call: call.global_layout((4, 4)),
        torch_values,
        "out_proj",
    ),
}
