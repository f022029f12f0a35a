"""Attention of any class in which some heads have fixed weights: the layer runs as it is, and these meet its values."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn

from convattn.errors import UnsupportedModelError
from convattn.heads.call_stack import CallStack, require_sizes
from convattn.heads.catalogue import attention_class
from convattn.heads.convolved_attention import MeasuredHeads
from convattn.heads.families.attention_class import CallContext
from convattn.heads.layout import Layout
from convattn.heads.operations import Operations
from convattn.heads.products import EXCLUDED, Product


@final
class MappedHeads(nn.Module):
    """Heads with one map for all images.

    Attributes:
        heads: Their numbers in the layer.
        weights: The map, (groups, heads, queries, keys); with one query and key it is the same for all of them.
        grid: The only grid of queries that it is for; None if it is for all.
        placed: Whether what the heads see depends on where queries and keys lie.
    """

    attends = False

    def __init__(
        self,
        heads: Sequence[int],
        weights: Float[Tensor, "groups heads queries keys"],
        grid: tuple[int, ...] | None = None,
        *,
        placed: bool = True,
    ) -> None:
        """Takes the heads with their maps."""
        super().__init__()
        self.heads = tuple(heads)
        self.weights = nn.Buffer(weights)
        self.grid = grid
        self.placed = placed

    def maps(self, _: Layout | None) -> Float[Tensor, "groups heads queries keys"]:
        """Returns the maps."""
        return self.weights


@final
class DisplacedHeads(nn.Module):
    """Heads whose positions are weighted by displacement: π_j on prefix tokens, and (1 − Σ_j π_j) K(δ) / Σ_δ K(δ).

    Attributes:
        heads: Their numbers in the layer.
        kernel: K, (heads, *box).
        prefix_shares: π, (heads, prefix tokens).
        prefix_maps: Weights of the queries of prefix tokens, (heads, prefix tokens, tokens).
        grid: The only grid of queries that they are for; None if they are for all.
        attends: Whether prefix tokens' queries attend as before.
    """

    placed = True

    def __init__(
        self, measured: MeasuredHeads, grid: tuple[int, ...] | None, *, attends: bool
    ) -> None:
        """Takes the heads with their kernels."""
        super().__init__()
        self.heads = measured.heads
        self.first = measured.first
        self.kernel = nn.Buffer(measured.kernel)
        self.prefix_shares = nn.Buffer(measured.prefix_shares)
        self.prefix_maps = nn.Buffer(measured.prefix_maps)
        self.grid = grid
        self.attends = attends

    def maps(self, layout: Layout | None) -> Float[Tensor, "groups heads queries keys"]:
        """Returns the weights on a layout; those of prefix tokens' queries are left out if they attend."""
        assert layout is not None
        places = layout.query_positions().nan_to_num()
        taps = torch.zeros((), dtype=torch.long)
        inside = ~layout.key_prefix
        for axis, (size, first) in enumerate(zip(self.kernel.shape[1:], self.first, strict=True)):
            steps = layout.keys[:, None, :, axis] - places[:, :, None, axis]
            tap = steps.round().long() - first
            inside = inside & (tap >= 0) & (tap < size)
            taps = taps * size + tap
        device = self.kernel.device
        taps = taps.masked_fill(~inside, 0).to(device)
        maps = self.kernel.flatten(1)[:, taps].transpose(0, 1)
        if layout.allowed is not None:
            inside = inside & layout.allowed
        maps = maps * inside[:, None].to(device)
        total = maps.sum(-1, keepdim=True)
        rest = 1 - self.prefix_shares.sum(1)
        maps = maps / total.masked_fill(total == 0, 1) * rest[:, None, None]
        maps[..., layout.key_prefix.nonzero()[:, 0].to(device)] = self.prefix_shares[:, None]
        if self.prefix_maps.numel() and not self.attends:
            maps[:, :, layout.prefix_queries().to(device)] = self.prefix_maps
        return maps


FixedHeads: TypeAlias = MappedHeads | DisplacedHeads
"""Some heads of a layer whose weights do not depend on content."""


@final
class FixedAttention(nn.Module):
    """An attention layer that runs as it is, but for heads that have fixed weights.

    Each product of weights and values is seen while the layer computes it, and the outputs of these heads are put into
    it; so masks, dropout and all else of the layer stay for the other heads. What a mask hides from a query is shared
    out among the rest. A layer that returns its weights returns those of these heads too: they are written into its
    own, which gradients do not see.

    Attributes:
        attention: The layer.
        fixed: The heads with fixed weights.
    """

    def __init__(
        self,
        name: str,
        attention: nn.Module,
        heads: int,
        fixed: Sequence[nn.Module],
        calls: CallStack,
    ) -> None:
        """Takes over a layer with some number of heads, by its name in the network."""
        super().__init__()
        self.name = name
        self.attention = attention
        self.heads = heads
        weight = next(attention.parameters(), torch.empty(0))
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.placed = any(part.placed for part in fixed)
        self.fixed = nn.ModuleList(fixed).to(weight.device, wide)
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        """Returns what the modules around the layer ask it for."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("attention"), name)

    def forward(self, *args: Any, **named: Any) -> Any:
        """Runs the layer; UnsupportedModelError unless it multiplies weights and values once."""
        return self._run(args, named)  # type: ignore[call-issue, call-arg]

    @torch.compiler.disable  # modes that see operations would be traced with them
    def _run(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        products = []

        def change(product: Product) -> Tensor:
            products.append(product.shape)
            return self._changed(product, args, named)

        with Operations(change):
            out = self.attention(*args, **named)
        if len(products) != 1:
            raise UnsupportedModelError(
                f"{self.name}: {len(products)} products of weights and values were seen in it, where there must be one"
            )
        return out

    def _changed(
        self, product: Product, args: tuple[Any, ...], named: dict[str, Any]
    ) -> Float[Tensor, "*lead queries width"]:
        """Returns a product with the outputs of the fixed heads in it."""
        known = attention_class(self.attention)
        if known is None or known.layout is None:
            raise UnsupportedModelError(
                f"{self.name}: its class must stay registered while its heads are replaced"
            )
        layout = None
        if known.heads_first or self.placed:
            call = self.calls.call(self.name, self, args, named)
            layout = self._layout(known.layout, replace(call, shape=product.shape))
        *lead, _, _ = product.shape
        if not known.heads_first and len(lead) > 1 and lead[-1] % self.heads:
            raise UnsupportedModelError(
                f"{self.name} must have the {self.heads} heads of the report, but has {lead[-1]} now"
            )
        groups = 1 if layout is None else layout.groups
        if known.heads_first:
            order = "(images heads groups) rows cols"
        else:
            order = "(images groups heads) rows cols"
        apart = "images groups heads rows cols"
        sizes = {"groups": groups, "heads": self.heads}

        def by_head(x: Tensor) -> Shaped[Tensor, "images groups heads rows cols"]:
            return rearrange(x.reshape(-1, *x.shape[-2:]), f"{order} -> {apart}", **sizes)

        out = by_head(product.out)
        pairs = product.shape[-2:]
        allowed = torch.ones(1, groups, *pairs, dtype=torch.bool, device=out.device)
        if layout is not None and layout.allowed is not None:
            allowed = allowed & layout.allowed.to(out.device)
        if product.mask is not None:
            mask = product.mask
            if mask.dtype != torch.bool:
                mask = mask > EXCLUDED
            allowed = allowed & by_head(mask.expand(product.shape)).any(2)
        values = by_head(product.inputs[-1])
        own = None  # unless the module computed weights, for each image, which it may return
        if product.factor is None and 0 not in product.inputs[0].stride():
            own = by_head(product.inputs[0].data)
        for part in self.fixed:
            assert isinstance(part, MappedHeads | DisplacedHeads)
            weights = _weights(part, layout, allowed).to(values.dtype)
            heads = torch.tensor(part.heads, device=out.device)
            means = weights @ values.index_select(2, heads)
            stays = None
            if part.attends and layout is not None:
                stays = (layout.queries < 0)[:, None, :, None].to(out.device)
            out = _with_heads(out, heads, means, stays)
            if own is not None:
                own.copy_(_with_heads(own, heads, weights, stays))
        return rearrange(out, f"{apart} -> {order}").view(product.out.shape)

    def _layout(self, read: Callable[[CallContext], Layout], call: CallContext) -> Layout:
        """Reads where queries and keys of a call lie."""
        try:
            return read(call)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"{self.name}: {error}; a layer with replaced heads must run within its network, and no checkpoint of"
                " gradients can compute it again"
            ) from None


def _weights(
    part: FixedHeads, layout: Layout | None, allowed: Bool[Tensor, "images groups rows cols"]
) -> Float[Tensor, "images groups heads rows cols"]:
    """Returns the weights of fixed heads, of which those that a mask hides are shared out among the rest."""
    if part.grid is not None and layout is not None:
        require_sizes(part.grid, layout.grid, "of a grid of {} positions")
    maps = part.maps(layout)
    seen = maps * allowed[:, :, None]
    total = seen.sum(-1, keepdim=True)
    # In this order: what is left may be so little that its inverse overflows.
    return seen / total.masked_fill(total == 0, 1) * maps.sum(-1, keepdim=True)


def _with_heads(
    old: Float[Tensor, "images groups all_heads rows cols"],
    heads: Int64[Tensor, " heads"],
    new: Float[Tensor, "_ groups heads rows cols"],
    stays: Bool[Tensor, "groups 1 rows 1"] | None,
) -> Float[Tensor, "images groups all_heads rows cols"]:
    """Puts new numbers of some heads in the place of the old ones, but in the rows that stay."""
    before = old.index_select(2, heads)
    new = new.to(old.dtype).expand_as(before)
    if stays is not None:
        new = torch.where(stays, before, new)
    return old.index_copy(2, heads, new)
