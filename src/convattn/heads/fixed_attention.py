"""Attention of any class in which some heads have fixed weights: the layer runs as it is, and these meet its values."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from convattn.errors import UnsupportedModelError
from convattn.heads.call_stack import CallStack, require_sizes
from convattn.heads.catalogue import attention_class
from convattn.heads.convolved_attention import MeasuredHeads
from convattn.heads.layout import Layout
from convattn.heads.operations import Operations
from convattn.heads.products import EXCLUDED, Product


@final
class MappedHeads(nn.Module):
    """Heads with one map for all images; what a mask hides is shared out among the rest.

    Attributes:
        heads: Their numbers in the layer.
        maps: Weights, (groups, heads, queries, keys); of one query and key, the sum of the weights of each query.
        grid: The grid of the queries; None if the weights do not depend on where they lie.
    """

    attends = False

    def __init__(
        self,
        heads: Sequence[int],
        maps: Float[Tensor, "groups heads queries keys"],
        grid: tuple[int, ...] | None,
    ) -> None:
        """Takes the heads with their maps."""
        super().__init__()
        self.heads = tuple(heads)
        self.maps = nn.Buffer(maps)
        self.grid = grid

    @property
    def placed(self) -> bool:
        """Whether the weights depend on where queries and keys lie."""
        return self.grid is not None

    def weights(
        self, layout: Layout | None, allowed: Bool[Tensor, "images groups queries keys"]
    ) -> Float[Tensor, "images groups _ queries keys"]:
        """Returns the weights of the pairs that are allowed; maps of another grid raise ShapeError."""
        if layout is not None and self.grid is not None and self.maps.numel() > 1:
            require_sizes(self.grid, layout.grid, _PLACES)
        return _within(self.maps, allowed)


_PLACES = "of a grid of {} positions"


@final
class DisplacedHeads(nn.Module):
    """Heads whose positions are weighted by displacement: π_j on prefix tokens, and (1 − Σ_j π_j) K(δ) / Σ_δ K(δ).

    The sum is over the keys that a query may see, whatever grid or window they are in.

    Attributes:
        heads: Their numbers in the layer.
        kernel: K, (heads, *box).
        prefix_shares: π, (heads, prefix tokens).
        prefix_maps: Weights of the queries of prefix tokens, (heads, prefix tokens, tokens).
        grid: The grid on which the heads were measured.
        any_grid: Whether K is meant for other grids.
        attends: Whether prefix tokens' queries attend as before.
    """

    placed = True

    def __init__(
        self, measured: MeasuredHeads, grid: tuple[int, ...], *, any_grid: bool, attends: bool
    ) -> None:
        """Takes the heads with their kernels."""
        super().__init__()
        self.heads = measured.heads
        self.first = measured.first
        self.kernel = nn.Buffer(measured.kernel.float())
        self.prefix_shares = nn.Buffer(measured.prefix_shares.float())
        self.prefix_maps = nn.Buffer(measured.prefix_maps.float())
        self.grid = grid
        self.any_grid = any_grid
        self.attends = attends

    def weights(
        self, layout: Layout | None, allowed: Bool[Tensor, "images groups queries keys"]
    ) -> Float[Tensor, "images groups _ queries keys"]:
        """Returns the weights of the pairs that are allowed; a grid that they are not meant for raises ShapeError."""
        assert layout is not None
        fixed_rows = self.prefix_maps.numel() > 0 and not self.attends
        if fixed_rows or not self.any_grid:
            require_sizes(self.grid, layout.grid, _PLACES)
        taps, inside = self._taps(layout)
        device = self.kernel.device
        by_pair = self.kernel.flatten(1)[:, taps.to(device)].transpose(0, 1)
        seen = allowed & (inside & ~layout.key_prefix).to(device)
        weights = by_pair * seen[:, :, None]
        total = weights.sum(-1, keepdim=True)
        rest = 1 - self.prefix_shares.sum(1)
        weights = weights / total.masked_fill(total == 0, 1) * rest[:, None, None]
        weights[..., layout.key_prefix] = self.prefix_shares[:, None]
        if fixed_rows:
            rows = layout.prefix_queries()
            weights[:, :, :, rows] = _within(self.prefix_maps[None], allowed[:, :, rows])
        return weights

    def _taps(self, layout: Layout) -> tuple[Tensor, Bool[Tensor, "groups queries keys"]]:
        """Returns the number of each pair's tap in the kernel, and whether it has one."""
        places = layout.query_positions().nan_to_num()
        taps = torch.zeros((), dtype=torch.long)
        inside = torch.ones((), dtype=torch.bool)
        for axis, (size, first) in enumerate(zip(self.kernel.shape[1:], self.first, strict=True)):
            steps = layout.keys[:, None, :, axis] - places[:, :, None, axis]
            tap = steps.round().long() - first
            inside = inside & (tap >= 0) & (tap < size)
            taps = taps * size + tap
        return taps.masked_fill(~inside, 0), inside


def _within(
    maps: Float[Tensor, "some_groups some_heads some_queries some_keys"],
    allowed: Bool[Tensor, "images groups queries keys"],
) -> Float[Tensor, "images groups some_heads queries keys"]:
    """Shares the weights of pairs that are not allowed out among those of the same query that are."""
    within = maps * allowed[:, :, None]
    total = within.sum(-1, keepdim=True)
    return within * (maps.sum(-1, keepdim=True) / total.masked_fill(total == 0, 1))


FixedHeads: TypeAlias = MappedHeads | DisplacedHeads
"""Some heads of a layer whose weights do not depend on content."""


@final
class FixedAttention(nn.Module):
    """An attention layer that runs as it is, but for heads that have fixed weights.

    Each product of weights and values is seen while the layer computes it, and the outputs of these heads are put into
    it; so masks, dropout and all else of the layer stay for the other heads.

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
        self.fixed = nn.ModuleList(fixed)
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        """Returns what the modules around the layer ask it for."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("attention"), name)

    @torch.compiler.disable
    def forward(self, *args: Any, **named: Any) -> Any:
        """Runs the layer; UnsupportedModelError unless it multiplies weights and values once."""
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
        assert known is not None
        layout = None
        if known.heads_first or any(part.placed for part in self.fixed):
            assert known.layout is not None
            call = self.calls.call(self.name, self, args, named)
            layout = known.layout(replace(call, shape=product.shape))
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
        for part in self.fixed:
            heads = torch.tensor(part.heads, device=out.device)
            weights = part.weights(layout, allowed).to(values.dtype)
            y = (weights @ values.index_select(2, heads)).to(out.dtype)
            if part.attends:
                attend = (layout.queries < 0)[:, None, :, None].to(out.device)
                y = torch.where(attend, out.index_select(2, heads), y)
            out = out.index_copy(2, heads, y)
        return rearrange(out, f"{apart} -> {order}").view(product.out.shape)
