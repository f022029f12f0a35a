"""Multi-head attention of which some or all heads average by displacement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import isqrt, prod
from typing import Any, final

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from convattn.convert.surgery import full_name
from convattn.convert.to_attention import ATTENTION_LAYERS
from convattn.errors import ArgumentError, ShapeError, UnsupportedModelError, must_be
from convattn.heads.foreign_vits import (
    NativeAttention,
    TimmAttention,
    TokenAttention,
    TransformersAttention,
    linear,
    read_timm_attention,
    read_transformers_attention,
    require_linear,
    require_no_weights,
    split_linear,
)
from convattn.heads.kernel_means import KernelMeans, MeasuredHeads
from convattn.layers import FactoredValues, RelativeAttention


@final
class SequenceAttention(nn.Module):
    """A layer with the call signature of transformers' attention over sequences, which takes masks of padding."""

    def __init__(self, tokens: nn.Module, config: Any) -> None:
        """Wraps the layer."""
        super().__init__()
        self.tokens, self.config = tokens, config

    def forward(
        self, hidden_states: Float[Tensor, "batch tokens width"], attention_mask: Tensor | None = None, **options: Any
    ) -> tuple[Float[Tensor, "batch tokens outputs"], None]:
        """Attends to the tokens that the mask leaves, and returns None in place of attention weights.

        A mask that differs between queries, a cache, or a request for attention weights raises ArgumentError.
        """
        if options.get("past_key_values") is not None:
            raise ArgumentError("past_key_values must be None, but a cache is given: kernels see both sides of a token")
        require_no_weights(options, self.config)
        return self.tokens(hidden_states, None if attention_mask is None else _present(attention_mask)), None


@final
class TorchAttention(nn.Module):
    """A layer with the call signature of `nn.MultiheadAttention`, for attention of tokens to themselves."""

    def __init__(self, tokens: nn.Module) -> None:
        """Wraps the layer."""
        super().__init__()
        self.tokens = tokens

    def forward(
        self,
        query: Float[Tensor, "batch tokens width"],
        key: Float[Tensor, "batch tokens width"],
        value: Float[Tensor, "batch tokens width"],
        need_weights: bool = True,
        **options: Any,
    ) -> tuple[Float[Tensor, "batch tokens outputs"], None]:
        """Attends, and returns None in place of attention weights.

        Keys or values that are not the queries' tokens, a mask, or a request for weights raise ArgumentError.
        """
        if not (key is query and value is query):
            raise ArgumentError(
                "query, key and value must be one tensor: heads that average by position have no others"
            )
        if need_weights:
            raise ArgumentError(must_be("need_weights", "False", True, because="weights are never computed"))
        for name, option in options.items():
            if name not in ("average_attn_weights", "is_causal") and option is not None:
                raise ArgumentError(f"{name} must be None, but is a {type(option).__name__}: no masks are taken here")
        if options.get("is_causal"):
            raise ArgumentError(must_be("is_causal", "False", True, because="kernels see both sides of a token"))
        return self.tokens(query), None


def _present(mask: Tensor) -> Bool[Tensor, "batch tokens"]:
    """Reads which tokens may be attended to from a mask that is the same for all queries."""
    if mask.ndim != 4:
        raise ArgumentError(must_be("attention_mask", "of the shape (batch, 1, queries, keys)", tuple(mask.shape)))
    allowed = mask if mask.dtype == torch.bool else mask == 0
    rows = allowed[:, 0]
    if not torch.compiler.is_compiling() and not bool((rows == rows[:, :1]).all()):
        raise ArgumentError("attention_mask must be the same for all queries: a kernel sees both sides of a token")
    return rows[:, 0]


@final
@dataclass(frozen=True)
class GatedPosition:
    """Attention by position, which is mixed with that by content: σ(λ) of the former, 1 − σ(λ) of the latter."""

    position: nn.Linear  # Scores of the heads from (columns, rows, columns² + rows²) of a displacement
    gates: nn.Parameter  # λ, (heads,)


@final
@dataclass(frozen=True, kw_only=True)
class ReadAttention(TokenAttention):
    """One layer, whose W_out another module may apply."""

    output: nn.Linear | None  # W_out with its bias; None if another module applies it
    wrap: Callable[[nn.Module], nn.Module]  # Gives a module from tokens to tokens the call signature of this layer
    gated: GatedPosition | None = None  # What is mixed with the attention by content


def read_attention(attention: nn.Module) -> ReadAttention:
    """Reads a layer by its class, or raises UnsupportedModelError with the reason alone."""
    read = _READERS.get(full_name(type(attention)))
    if read is None:
        raise UnsupportedModelError("attention of its class is not replaced")
    return read(attention)


def _timm(attention: nn.Module) -> ReadAttention:
    return _from_native(read_timm_attention(("",), attention), TimmAttention)


def _convit(attention: nn.Module) -> ReadAttention:
    query, key, value = split_linear(require_linear(attention, "qkv"), 3)
    return _from_convit(attention, query, key, value, None)


def _gated(attention: nn.Module) -> ReadAttention:
    query, key = split_linear(require_linear(attention, "qk"), 2)
    value, position = require_linear(attention, "v"), require_linear(attention, "pos_proj")
    gates = attention.gating_param
    assert isinstance(gates, nn.Parameter)
    return _from_convit(attention, query, key, value, GatedPosition(position, gates))


def _from_convit(
    attention: nn.Module, query: nn.Linear, key: nn.Linear, value: nn.Linear, gated: GatedPosition | None
) -> ReadAttention:
    proj = require_linear(attention, "proj")
    return ReadAttention(
        heads=int(attention.num_heads),  # type: ignore[arg-type]
        query=query,
        key=key,
        value=value,
        output=linear(proj.weight, proj.bias, like=proj),
        dropout=float(attention.attn_drop.p),  # type: ignore[union-attr, arg-type]
        scale=float(attention.scale),  # type: ignore[arg-type]
        after=attention.proj_drop,  # type: ignore[arg-type]
        wrap=TimmAttention,
        gated=gated,
    )


def _transformers(attention: nn.Module) -> ReadAttention:
    wrap = partial(TransformersAttention, config=attention.config)
    return _from_native(read_transformers_attention(("",), attention), wrap)


def _from_native(native: NativeAttention, wrap: Callable[[nn.Module], nn.Module]) -> ReadAttention:
    same = {item.name: getattr(native, item.name) for item in fields(TokenAttention)}
    return ReadAttention(**same, output=native.output, wrap=wrap)


def _bert(attention: nn.Module) -> ReadAttention:
    if attention.is_decoder or attention.is_causal:
        raise UnsupportedModelError("it is a decoder's, which sees only what comes before")
    query, key, value = (require_linear(attention, name) for name in ("query", "key", "value"))
    return ReadAttention(
        heads=int(attention.num_attention_heads),  # type: ignore[arg-type]
        query=query,
        key=key,
        value=value,
        output=None,
        dropout=float(attention.dropout.p),  # type: ignore[union-attr, arg-type]
        scale=float(attention.scaling),  # type: ignore[arg-type]
        wrap=partial(SequenceAttention, config=attention.config),
    )


def _torch(attention: nn.Module) -> ReadAttention:
    assert isinstance(attention, nn.MultiheadAttention)
    refused = {
        "its keys and values have widths of their own": attention.in_proj_weight is None,
        "it has learned keys and values beside the tokens": attention.bias_k is not None or attention.add_zero_attn,
        "its batch is the second axis": not attention.batch_first,
    }
    reasons = [reason for reason, found in refused.items() if found]
    if reasons:
        raise UnsupportedModelError(reasons[0])
    out, width = attention.out_proj, attention.embed_dim
    whole = nn.Linear(width, 3 * width, device="meta")
    whole.weight, whole.bias = attention.in_proj_weight, attention.in_proj_bias
    query, key, value = split_linear(whole, 3)
    return ReadAttention(
        heads=attention.num_heads,
        query=query,
        key=key,
        value=value,
        output=linear(out.weight, out.bias, like=out),
        dropout=attention.dropout,
        wrap=TorchAttention,
    )


_READERS: dict[str, Callable[[nn.Module], ReadAttention]] = {
    "timm.layers.attention.Attention": _timm,
    "timm.models.convit.GPSA": _gated,
    "timm.models.convit.MHSA": _convit,
    "transformers.models.vit.modeling_vit.ViTAttention": _transformers,
    "transformers.models.bert.modeling_bert.BertSelfAttention": _bert,
    "torch.nn.modules.activation.MultiheadAttention": _torch,
}


@final
class ContentHeads(nn.Module):
    """Heads that attend by content as before: softmax(s q kᵀ) v, with the query and key rows of these heads only."""

    def __init__(self, layer: ReadAttention, heads: Sequence[int]) -> None:
        """Takes over some heads of a layer."""
        super().__init__()
        rows = head_rows(heads, layer.head_width)
        self.query, self.key = some_rows(layer.query, rows), some_rows(layer.key, rows)
        self.query_norm, self.key_norm = layer.query_norm, layer.key_norm
        self.heads, self.dropout, self.scale = len(heads), layer.dropout, layer.scale

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens width"],
        values: Float[Tensor, "batch heads tokens head_width"],
        present: Bool[Tensor, "batch tokens"] | None,
    ) -> Float[Tensor, "batch heads tokens head_width"]:
        """Attends to the tokens that are present."""
        query = self.query_norm(split_heads(self.query(tokens), self.heads))
        key = self.key_norm(split_heads(self.key(tokens), self.heads))
        mask = None if present is None else present[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        return functional.scaled_dot_product_attention(query, key, values, mask, dropout, scale=self.scale)


@final
class GatedHeads(nn.Module):
    """Gated heads that attend as before: ((1 − σ(λ)) softmax(s q kᵀ) + σ(λ) softmax(p)) v.

    The score of position is p = w · (columns, rows, columns² + rows²) + b, of the displacement from query to key on a
    square of √tokens rows, whatever the grid of patches: timm's layer is not told its rows and columns either.
    Source: d'Ascoli et al. 2021 (ConViT), equations 6 and 7.
    """

    def __init__(self, layer: ReadAttention, heads: Sequence[int]) -> None:
        """Takes over some heads of a layer."""
        super().__init__()
        assert layer.gated is not None
        assert layer.scale is not None
        rows, position, gates = head_rows(heads, layer.head_width), layer.gated.position, layer.gated.gates
        self.query, self.key = some_rows(layer.query, rows), some_rows(layer.key, rows)
        self.position = some_rows(position, torch.tensor(list(heads)))
        self.gates = nn.Parameter(gates.detach()[list(heads)].clone(), requires_grad=gates.requires_grad)
        self.heads, self.dropout, self.scale = len(heads), layer.dropout, layer.scale

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens width"],
        values: Float[Tensor, "batch heads tokens head_width"],
        present: Bool[Tensor, "batch tokens"] | None,
    ) -> Float[Tensor, "batch heads tokens head_width"]:
        """Attends to the positions, all of which are present."""
        assert present is None
        query, key = (split_heads(part(tokens), self.heads) for part in (self.query, self.key))
        content = torch.matmul(query, key.mT * self.scale).softmax(-1)
        shifts = _shifts(isqrt(tokens.shape[1]), self.gates)
        position = rearrange(self.position(shifts), "query key heads -> heads query key")
        gates = self.gates.sigmoid()[:, None, None]
        weights = (1 - gates) * content + gates * position.softmax(-1)
        return torch.matmul(functional.dropout(weights, self.dropout, self.training), values)


def _shifts(side: int, like: Tensor) -> Float[Tensor, "positions positions 3"]:
    """Returns columns, rows and squared length of the displacement from each position of a square to each other."""
    steps = torch.arange(side, dtype=like.dtype, device=like.device)
    row, col = torch.cartesian_prod(steps, steps).unbind(1)
    down, right = row[None, :] - row[:, None], col[None, :] - col[:, None]
    return torch.stack([right, down, right**2 + down**2], dim=-1)


def head_rows(heads: Sequence[int], width: int) -> Tensor:
    """Returns the rows of some heads."""
    return (torch.tensor(list(heads))[:, None] * width + torch.arange(width)).flatten()


def some_rows(whole: nn.Linear, rows: Tensor) -> nn.Linear:
    """Copies some rows of a linear map."""
    return linear(whole.weight[rows], None if whole.bias is None else whole.bias[rows], like=whole)


def split_heads(tokens: Float[Tensor, "batch tokens inner"], heads: int) -> Float[Tensor, "batch heads tokens width"]:
    """Splits the channels into heads, which stand one after the other."""
    return rearrange(tokens, "batch tokens (heads width) -> batch heads tokens width", heads=heads)


@final
class ConvolvedAttention(nn.Module):
    """Attention over prefix tokens and positions, of which some heads average values by displacement.

    Such a head gives a position the share π_j of the j-th prefix token, the same at every position and for every image,
    and 1 − Σ_j π_j of the mean of the values around it under the kernel. A prefix token has no position; its weights
    for all tokens are fixed. Heads of which the kernels differ much in size run apart. Without heads by content there
    is no query, key and softmax.

    Attributes:
        value: W_val with its bias; first the heads that average, in the order of `means`, then the others.
        output: W_out with its bias, with its columns in that order; None if another module applies it.
        means: The heads that average.
        prefix_shares: π, (heads that average, prefix tokens).
        prefix_maps: Weights of each prefix token's own query, (heads that average, prefix tokens, tokens).
        content: The heads that attend as before, or None.
        back: Where each head of the layer is in that order, if no `output` is there to put them right.
        grid: Sizes of the grid of positions; None for a sequence of any length.
        after: What follows the output: its dropout.
    """

    back: Tensor | None

    def __init__(self, layer: ReadAttention, groups: Sequence[MeasuredHeads], grid: tuple[int, ...] | None) -> None:
        """Takes over a layer, with heads that average in groups of like size; the others attend as before."""
        super().__init__()
        moved = [head for group in groups for head in group.heads]
        kept = [head for head in range(layer.heads) if head not in moved]
        order, width = [*moved, *kept], layer.head_width
        rows = head_rows(order, width)
        self.value = some_rows(layer.value, rows)
        out, back = layer.output, torch.argsort(torch.tensor(order, device=layer.value.weight.device))
        self.output = None if out is None else linear(out.weight[:, rows], out.bias, like=out)
        self.register_buffer("back", back if out is None and order != sorted(order) else None, persistent=False)
        like = layer.value.weight
        kind = {"device": like.device, "dtype": torch.promote_types(like.dtype, torch.float32)}
        means = nn.ModuleList(KernelMeans(group.kernel.to(**kind), group.first) for group in groups)
        self.means = means.requires_grad_(like.requires_grad)
        shares, maps = (
            torch.cat(parts).to(**kind)
            for parts in zip(*((group.prefix_shares, group.prefix_maps) for group in groups), strict=True)
        )
        self.prefix_shares = nn.Parameter(shares, requires_grad=like.requires_grad)
        self.prefix_maps = nn.Parameter(maps, requires_grad=like.requires_grad)
        attend = ContentHeads if layer.gated is None else GatedHeads
        self.content = attend(layer, kept) if kept else None
        self.heads, self.moved, self.grid, self.after = layer.heads, len(moved), grid, layer.after

    @property
    def prefix(self) -> int:
        """Number of tokens before the positions."""
        return self.prefix_shares.shape[1]

    def forward(
        self, tokens: Float[Tensor, "batch tokens width"], present: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        """Applies the attention to a batch of tokens.

        Args:
            tokens: Prefix tokens, then positions row by row.
            present: Tokens that may be attended to; None means all. Prefix tokens always are.

        Returns:
            Tokens in the same order.

        Raises:
            ShapeError: The number of tokens is not that of prefix tokens and positions.
        """
        sizes = self._sizes(tokens.shape[1])
        values = split_heads(self.value(tokens), self.heads)
        moved, kept = values.split([self.moved, self.heads - self.moved], dim=1)
        parts = [self._averaged(moved, sizes, present)]
        if self.content is not None:
            parts.append(self.content(tokens, kept, present))
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if self.back is not None:
            y = y[:, self.back]
        y = rearrange(y, "batch heads tokens width -> batch tokens (heads width)")
        return self.after(y if self.output is None else self.output(y))

    def _averaged(
        self, values: Float[Tensor, "batch heads tokens width"], sizes: tuple[int, ...], present: Tensor | None
    ) -> Float[Tensor, "batch heads tokens width"]:
        """Averages values at positions, and those of all tokens for prefix tokens."""
        prefix, cells = values.split([self.prefix, values.shape[2] - self.prefix], dim=2)
        there = None if present is None else present[:, self.prefix :]
        counts = [means.heads for means in self.means]
        pairs = zip(self.means, cells.split(counts, dim=1), strict=True)
        around = torch.cat([means(part, sizes, there) for means, part in pairs], dim=1)
        if not self.prefix:
            return around
        shares = self.prefix_shares.to(values.dtype)
        rest = 1 - shares.sum(1)
        around = rest[:, None, None] * around + torch.matmul(shares[:, None], prefix)
        maps = self.prefix_maps
        if present is not None:
            maps = maps * present[:, None, None]
            maps = maps / maps.sum(-1, keepdim=True)
        return torch.cat([torch.matmul(maps.to(values.dtype), values), around], dim=2)

    def _sizes(self, tokens: int) -> tuple[int, ...]:
        if self.grid is None:
            return (tokens - self.prefix,)
        if tokens != self.prefix + prod(self.grid):
            cells = " x ".join(map(str, self.grid))
            expected = f"{self.prefix + prod(self.grid)} ({self.prefix} prefix and {cells} positions)"
            raise ShapeError(f"tokens must be {expected}, as where the heads were measured, but are {tokens}")
        return self.grid


OWN = ATTENTION_LAYERS
"""Classes that `require_replaceable` takes."""


@final
class ConvolvedImages(nn.Module):
    """A layer from images to images whose heads average by displacement: y[q] = b + Σ_h W_h Σ_k A_h[q, k] x[k].

    Attributes:
        value: What is averaged: W_val, (heads, width, inputs), or None for the pixels themselves.
        output: What follows: W_out or W_h, (heads, outputs, width or inputs).
        bias: b, or None.
        means: The heads, in the order of `value` and `output`.
    """

    value: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: RelativeAttention, groups: Sequence[MeasuredHeads]) -> None:
        """Takes over the matrices of a layer, with all of its heads in groups of like size."""
        super().__init__()
        order = torch.tensor([head for group in groups for head in group.heads])
        values, like = layer.values, next(layer.values.parameters())
        factored = isinstance(values, FactoredValues)
        self.value = _taken(values.value[order], values.value) if factored else None
        self.output = _taken(values.output[order], values.output) if factored else _taken(values.maps()[order], like)
        self.bias = None if layer.bias is None else _taken(layer.bias, layer.bias)
        kind = {"device": like.device, "dtype": torch.promote_types(like.dtype, torch.float32)}
        means = nn.ModuleList(KernelMeans(group.kernel.to(**kind), group.first) for group in groups)
        self.means = means.requires_grad_(like.requires_grad)
        self.dims = layer.dims

    def forward(self, x: Float[Tensor, "batch inputs *sizes"]) -> Float[Tensor, "batch outputs *sizes"]:
        """Averages.

        Args:
            x: Images.

        Returns:
            Images of the same size.

        Raises:
            ShapeError: The images have another number of axes.
        """
        if x.ndim != self.dims + 2:
            raise ShapeError(f"x must have {self.dims + 2} axes, batch and channels first, but has {x.ndim}")
        sizes, pixels = tuple(x.shape[2:]), rearrange(x, "batch inputs ... -> batch (...) inputs")
        if self.value is None:
            values = pixels[:, None].expand(-1, len(self.output), -1, -1)
        else:
            values = einsum(self.value, pixels, "heads width inputs, batch n inputs -> batch heads n width")
        pairs = zip(self.means, values.split([means.heads for means in self.means], dim=1), strict=True)
        y = torch.cat([means(part, sizes) for means, part in pairs], dim=1)
        y = einsum(self.output, y, "heads outputs width, batch heads n width -> batch outputs n")
        return (y if self.bias is None else y + self.bias[:, None]).unflatten(2, sizes)


def _taken(numbers: Tensor, like: nn.Parameter) -> nn.Parameter:
    """Copies numbers of the old layer, which learn if the parameter does that they come from."""
    return nn.Parameter(numbers.detach().clone(), requires_grad=like.requires_grad)


def require_replaceable(layer: RelativeAttention, replaced: int) -> None:
    """Raises UnsupportedModelError with the reason alone if a layer cannot be rebuilt with so many heads replaced."""
    geometry = layer.geometry
    sizes = tuple(size + 2 for size in geometry.kernel_size)
    reasons = {
        "it has no content: attention_to_conv makes a convolution of it": layer.content is None,
        "its channels are in groups": layer.groups != 1,
        "its keys are not the pixels that its queries are at": any(
            axis.keys != size or axis.queries != range(size)
            for axis, size in zip(geometry.axes(sizes), sizes, strict=True)
        ),
        "its other heads attend by content, and only whole layers of its class are replaced": 0
        < replaced
        < layer.num_heads,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise UnsupportedModelError(found[0])
