"""Attention of any class in which some heads have fixed weights: the layer runs as it is, and these meet its values."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from convattn.errors import UnsupportedModelError
from convattn.heads.call_stack import CallStack, require_sizes
from convattn.heads.catalogue import attention_class
from convattn.heads.families.attention_class import AttentionClass
from convattn.heads.head_report import LayerReport
from convattn.heads.layout import Layout
from convattn.heads.operations import Operations
from convattn.heads.products import Product
from convattn.wording import ITSELF


@final
class MappedHeads(nn.Module):
    """Heads with one map for all images.

    Attributes:
        heads: Their numbers in the layer.
        weights: The map, (groups, heads, queries, keys); with one query and key it is the same for all of them.
    """

    def __init__(
        self,
        heads: Sequence[int],
        weights: Float[Tensor, "groups heads queries keys"],
    ) -> None:
        """Takes the heads with their maps."""
        super().__init__()
        self.heads = tuple(heads)
        self.weights = nn.Buffer(weights)

    def maps(self, _: Layout | None, **__: bool) -> Float[Tensor, "groups heads queries keys"]:
        """Returns the maps."""
        return self.weights


@final
class DisplacedHeads(nn.Module):
    """Heads whose positions are weighted by displacement: π_j on prefix tokens, and (1 − Σ_j π_j) K(δ) / Σ_δ K(δ).

    Attributes:
        heads: Their numbers in the layer.
        kernel: K, (heads, *box), of sum 1.
        first: Displacement of the box's first tap.
        prefix_shares: π, the mean weight of a position for each prefix token, (heads, prefix tokens).
        prefix_maps: Weights of the queries of prefix tokens, of sum 1, (heads, prefix tokens, tokens).
    """

    def __init__(
        self,
        heads: tuple[int, ...],
        kernel: Float[Tensor, "heads *box"],
        *,
        first: tuple[int, ...],
        prefix_shares: Float[Tensor, "heads prefix"],
        prefix_maps: Float[Tensor, "heads prefix tokens"],
    ) -> None:
        """Takes the heads with their kernels."""
        super().__init__()
        self.heads = heads
        self.kernel = nn.Buffer(kernel)
        self.first = first
        self.prefix_shares = nn.Buffer(prefix_shares)
        self.prefix_maps = nn.Buffer(prefix_maps)

    def maps(
        self, layout: Layout | None, *, attends: bool
    ) -> Float[Tensor, "groups heads queries keys"]:
        """Returns the weights on a layout; those of prefix tokens' queries are left out if they attend."""
        assert layout is not None
        places = layout.query_positions().nan_to_num()
        steps = layout.keys[:, None] - places[:, :, None]
        taps = steps.round().long() - torch.tensor(self.first)
        on_kernel = (taps >= 0) & (taps < torch.tensor(self.kernel.shape[1:]))
        inside = on_kernel.all(-1) & ~layout.key_prefix
        device = self.kernel.device
        taps = taps.masked_fill(~inside[..., None], 0).to(device)
        maps = self.kernel[:, *taps.unbind(-1)].transpose(0, 1)
        if layout.allowed is not None:
            inside = inside & layout.allowed
        maps = maps * inside[:, None].to(device)
        total = maps.sum(-1, keepdim=True)
        rest = 1 - self.prefix_shares.sum(1)
        maps = maps / total.masked_fill(total == 0, 1) * rest[:, None, None]
        maps[..., layout.key_prefix.nonzero()[:, 0].to(device)] = self.prefix_shares[:, None]
        if self.prefix_maps.numel() and not attends:
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
        report: LayerReport,
        attention: nn.Module,
        fixed: Sequence[FixedHeads],
        calls: CallStack,
        *,
        placed: bool,
        grid: tuple[int, ...] | None,
        attends: bool,
    ) -> None:
        """Takes over a layer, of which the report has the name and the heads.

        What `placed` heads see depends on where queries and keys lie. Heads are fixed for one grid of queries, None for
        all. Prefix tokens' queries may attend as before in heads by
        displacement.
        """
        super().__init__()
        self._name = report.name or ITSELF
        self.attention = attention
        self._heads = len(report.heads)
        weight = next(attention.parameters(), torch.empty(0))
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.fixed = nn.ModuleList(fixed).to(weight.device, wide)
        self._calls = calls
        self._placed = placed
        self._grid = grid
        self._attends = attends

    def __getattr__(self, name: str) -> Any:
        """Returns what the modules around the layer ask it for."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("attention"), name)

    @torch.compiler.disable  # modes that see operations would be traced with them
    def forward(self, *args: Any, **named: Any) -> Any:  # type: ignore[override]
        """Runs the layer; UnsupportedModelError unless it multiplies weights and values once."""
        products = []

        def change(product: Product) -> Tensor:
            products.append(product.shape)
            return self._changed(product)

        with Operations(change):
            out = self.attention(*args, **named)
        if len(products) != 1:
            raise UnsupportedModelError(
                f"{self._name}: {len(products)} products of weights and values were seen in it, where there must be one"
            )
        return out

    def _changed(self, product: Product) -> Float[Tensor, "*lead queries width"]:
        """Returns a product with the outputs of the fixed heads in it."""
        known = attention_class(type(self.attention))
        if known is None or known.layout is None:
            raise UnsupportedModelError(
                f"{self._name}: its class must stay registered while its heads are replaced"
            )
        layout = None
        if known.heads_first or self._placed:
            layout = self._layout(known, product)
            if self._grid is not None:
                require_sizes(self._grid, layout.grid, "of a grid of {} positions")
        *lead, queries, keys = product.shape
        if not known.heads_first and len(lead) > 1 and lead[-1] % self._heads:
            raise UnsupportedModelError(
                f"{self._name} must have the {self._heads} heads of the report, but has {lead[-1]} now"
            )
        groups = 1 if layout is None else layout.groups
        by_group = partial(known.by_group, groups=groups, heads=self._heads)
        out = by_group(product.out)
        allowed = torch.ones(1, groups, queries, keys, dtype=torch.bool, device=out.device)
        if layout is not None and layout.allowed is not None:
            allowed = allowed & layout.allowed.to(out.device)
        if product.mask is not None:
            allowed = allowed & by_group(product.mask.expand(product.shape)).any(2)
        values = by_group(product.by_key[-1])
        own = None  # unless the module computed weights, for each image, which it may return
        if product.factor is None and 0 not in product.by_query[0].stride():
            own = by_group(product.by_query[0].data)
        for part in self.fixed:
            assert isinstance(part, MappedHeads | DisplacedHeads)
            maps = part.maps(layout, attends=self._attends)
            seen = maps * allowed[:, :, None]
            total = seen.sum(-1, keepdim=True)
            # In this order: what is left may be so little that its inverse overflows.
            weights = seen / total.masked_fill(total == 0, 1) * maps.sum(-1, keepdim=True)
            weights = weights.to(values.dtype)
            heads = torch.tensor(part.heads, device=out.device)
            means = weights @ values.index_select(2, heads)
            stays = None
            if self._attends and isinstance(part, DisplacedHeads) and layout is not None:
                stays = (layout.queries < 0)[:, None, :, None].to(out.device)
            out = _with_heads(out, heads, means, stays)
            if own is not None:
                own.copy_(_with_heads(own, heads, weights, stays))
        if known.heads_first:
            out = out.transpose(1, 2)
        return out.reshape(product.out.shape)

    def _layout(self, known: AttentionClass, product: Product) -> Layout:
        """Reads where queries and keys of the call lie that computes a product."""
        call = self._calls.attending(product.shape)
        try:
            return known.read(replace(call, module=self.attention))
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"{self._name}: {error}; a layer with replaced heads must run within its network, and no checkpoint of"
                " gradients can compute it again"
            ) from None


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
