"""Weights that are a product over axes: means along one axis after the other, O(N · (H + W)) instead of O(N²).

With s_h(δ) = Σ_a s_h,a(δ_a), exp s_h is a product over axes and so is its sum over the keys, hence exactly
A_h = A_h,rows ⊗ A_h,cols (`docs/explanation/theory.md` §4), and y = Σ_h W_h A_h,rows A_h,cols x. Head by head::

    a tile of the pixels      along the rows        along the columns      times W_h, added
    (rows, cols, channels) →  (rows_out, cols, …) → (rows_out, cols_out, …) →  (pixels_out, outputs)

Intermediate results are computed for images and tiles that fit the cache, over the keys that matter to the tile's
queries, and computed again for gradients. Small calls are plain products of all heads at once, and so is everything
that torch must see (compilers, autocast, `torch.func`, further derivatives). On a CPU, all heads are computed together
in bfloat16 and for few channels. One axis that holds all pixels is the general case of weights that are not a product.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.functional.reference import combine_heads, join_axes
from convattn.functional.torch_modes import (
    autocasts,
    backward_to_differentiate,
    needs_own_operations,
    product_dtype,
)

AXES = ("depth", "rows", "cols")

SMALL_BYTES = 15 << 15
"""Bytes of the means of all heads up to which plain products of all heads are quicker than tiles, head by head: with
nine heads and 64 channels on 14 x 14 pixels, 430 kB, a forward takes half the time and a step a fifth (one core)."""

_FEW, _NEAR = 8, 64
"""Most channels, and most keys along an axis, for which all heads together are quicker than one by one: nine heads on
32 x 32 pixels take a fifth of the time with 3 channels, a third with 8, and as long with 16 (a step, one core)."""

_JOINED = 64
"""Most keys of an image whose axes are joined under autocast on a CPU: one large product is then quicker than many
small ones (a step with 8 x 8 pixels in bfloat16 takes half the time on one core with AMX, with 16 x 16 as long)."""


def separable_attention(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
) -> Float[Tensor, "batch outputs *queries"]:
    """Attends with weights A_h = A_h,1 ⊗ … ⊗ A_h,n and sums the heads' matrices times the means.

    Args:
        weights: For each axis, (heads, queries, keys).
        keys: Key images with as many axes.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.

    Returns:
        Output channels at each query, in the dtype of `keys`. Derivatives above the first, and those of torch's
        function transforms, take the memory of all mixed pixels.
    """
    if _to_be_joined(weights, keys):
        y = separable_attention([join_axes(weights)], keys.flatten(2), maps, groups)
        return y.unflatten(2, [weight.shape[1] for weight in weights])
    if _is_small(weights, keys):
        return attention_as_products(
            [weight.to(keys.dtype) for weight in weights], keys, maps, groups
        )
    if (
        groups == 1
        and len(weights) < 3
        and _as_one(keys)
        and not needs_own_operations(keys, maps, *weights)
    ):
        return attention_of_all_heads(weights, keys, maps)
    weights = [weight.to(keys.dtype) for weight in weights]
    narrow = (
        keys.element_size() < torch.float32.itemsize
    )  # heads must be summed before they are rounded
    in_graph = torch.compiler.is_compiling() or autocasts(keys.device)
    if narrow or in_graph or needs_own_operations(keys, maps, *weights):
        return attention_as_products(weights, keys, maps, groups)
    pixels = rearrange(keys, "batch channels ... -> batch ... channels").contiguous()
    y = _Product.apply(pixels, maps, groups, *weights)
    return rearrange(y, "batch ... outputs -> batch outputs ...")


def _is_small(weights: Sequence[Tensor], keys: Tensor) -> bool:
    """Tells whether the means of all heads are few numbers of at least 32 bits, outside autocast on a CPU."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or keys.element_size() < 4:
        return False
    pixels = max(prod(keys.shape[2:]), prod(weight.shape[1] for weight in weights))
    return len(weights[0]) * prod(keys.shape[:2]) * pixels * keys.element_size() <= SMALL_BYTES


def _as_one(keys: Tensor) -> bool:
    """Tells whether all heads are computed together: on a CPU in bfloat16 or for few channels, outside a compiler."""
    if torch.compiler.is_compiling() or keys.device.type != "cpu":
        return False
    dtype, few = product_dtype(keys), keys.shape[1] <= _FEW and max(keys.shape[2:]) <= _NEAR
    return dtype == torch.bfloat16 or (few and dtype in (torch.float32, torch.float64))


def _to_be_joined(weights: Sequence[Tensor], keys: Tensor) -> bool:
    """Tells whether the weights of all axes are multiplied before they meet the pixels."""
    on_cpu = keys.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return len(weights) > 1 and on_cpu and prod(keys.shape[2:]) <= _JOINED


def values_first_attention(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    value: Float[Tensor, "heads inner channels_per_group"],
    output: Float[Tensor, "heads outputs inner_per_group"] | None,
    groups: int = 1,
) -> Float[Tensor, "batch outputs *queries"]:
    """Attends with weights A_h = A_h,1 ⊗ … ⊗ A_h,n: y[q] = Σ_h W_out,h Σ_k A_h[q, k] W_val,h x[k].

    It is faster if heads have few channels, or if there are fewer output than input channels.

    Args:
        weights: For each axis, (heads, queries, keys).
        keys: Key images with as many axes.
        value: W_val; with groups its block-diagonal.
        output: W_out likewise; None sums the heads as they are.
        groups: Number of blocks.

    Returns:
        Output channels at each query, in the dtype of `keys`.
    """
    names = AXES[-len(weights) :]
    before = " ".join(names)
    mixed = einsum(
        rearrange(
            keys, "batch (groups channels) ... -> batch groups channels (...)", groups=groups
        ),
        rearrange(
            value, "heads (groups inner) channels -> heads groups inner channels", groups=groups
        ),
        "batch groups channels keys, heads groups inner channels -> heads batch groups inner keys",
    )
    mixed = rearrange(mixed, "heads batch groups inner keys -> heads (batch groups inner) keys")
    mixed = mixed.unflatten(2, keys.shape[2:])
    for name, weight in zip(names, weights, strict=True):
        after = before.replace(name, "queries")
        pattern = f"heads queries {name}, heads channels {before} -> heads channels {after}"
        mixed, before = einsum(weight, mixed, pattern), after.replace("queries", f"queries_{name}")
    mixed = mixed.unflatten(1, (len(keys), value.shape[1]))
    if output is None:
        return mixed.sum(0, dtype=torch.promote_types(mixed.dtype, torch.float32)).to(mixed.dtype)
    return combine_heads(rearrange(mixed, "heads batch ... -> batch heads ..."), output, groups)


def attention_as_products(
    weights: Sequence[Tensor], keys: Tensor, maps: Tensor, groups: int
) -> Tensor:
    """Computes the attention as plain products, for compilers, autocast and further derivatives to work on."""
    names = AXES[-len(weights) :]
    mixed, before = keys, "batch channels " + " ".join(names)
    for name, weight in zip(names, weights, strict=True):
        after = "batch heads channels " + before.split("channels ")[1].replace(name, "queries")
        mixed = einsum(weight, mixed, f"heads queries {name}, {before} -> {after}")
        before = after.replace("queries", f"queries_{name}")
    return combine_heads(mixed, maps, groups)


_CACHE = 1 << 21
"""Bytes of mixed pixels worked on at a time on a CPU, about the second-level caches of a few cores."""

_SHORT = 32
"""Queries of a tile along an axis on which heads are narrow: enough for matrix products to run at speed, few enough for
their keys to be few."""

WORTHWHILE = 0.6
"""Share of all keys below which short tiles pay for their calls."""


class QueryTile(NamedTuple):
    """Queries along one axis that are computed together."""

    queries: slice  # positions in the output
    keys: list[slice]  # for each head, the keys that get all attention but rounding

    @property
    def longest(self) -> int:
        """The larger of the numbers of queries and keys."""
        return max(length_of(self.queries), *map(length_of, self.keys))


class Workspace:
    """Memory that is reused within one call, with the dtype and device of a given tensor."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._held: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor:
        """Returns an uninitialised, contiguous tensor in the memory that the last tensor of this name had."""
        size = prod(shape)
        held = self._held.get(name)
        if held is None or held.numel() < size:
            held = self._held[name] = self._like.new_empty(size)
        return held[:size].view(shape)


def length_of(part: slice) -> int:
    """Returns the number of positions in a slice."""
    return part.stop - part.start


def chunks(length: int, size: int) -> list[slice]:
    """Cuts positions into chunks of a size; the last may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


class _Product(torch.autograd.Function):
    """Attend along each axis, then apply the head's matrix, summing over heads in place."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, maps: Tensor, groups: int, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(pixels, maps, *weights)
        ctx.groups = groups
        workspace = Workspace(pixels)
        y = pixels.new_zeros(
            pixels.shape[0], *(weight.shape[1] for weight in weights), maps.shape[1]
        )
        for images, tile in _image_tiles(pixels, weights):
            part = y[_queries(images, tile)]
            total = part if part.is_contiguous() else workspace.get("total", *part.shape).zero_()
            for head, weight in enumerate(maps):
                mixed = mix(weights, tile, head, pixels[images], workspace)[-1]
                add_head(total.view(-1, total.shape[-1]), mixed, weight, groups)
            if total is not part:
                part.copy_(total)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, *weights = ctx.saved_tensors
        needs, workspace = ctx.needs_input_grad, Workspace(pixels)
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            wanted = (*needs[:2], *needs[3:])
            compute = partial(_pixels_as_products, ctx.groups)
            dx, dmaps, *dweights = backward_to_differentiate(
                compute, (pixels, maps, *weights), wanted, gradient
            )
            return dx, dmaps, None, *dweights
        dx = torch.zeros_like(pixels) if needs[0] else None
        dmaps = torch.zeros_like(maps) if needs[1] else None
        dweights = [
            torch.zeros_like(w) if need else None
            for w, need in zip(weights, needs[3:], strict=True)
        ]
        for images, tile in _image_tiles(pixels, weights):
            dy = gradient[_queries(images, tile)].flatten(0, -2).contiguous()
            for head, weight in enumerate(maps):
                stages = mix(weights, tile, head, pixels[images], workspace)
                if dmaps is not None:
                    head_weight_backward(dy, stages[-1], ctx.groups, into=dmaps[head])
                if dx is None and not any(needs[3:]):
                    continue
                dmixed = workspace.get("gradient", *stages[-1].shape)
                head_backward(dy, weight, ctx.groups, out=dmixed)
                mix_backward(
                    weights,
                    tile,
                    head,
                    stages,
                    dmixed,
                    pixels_gradient=None if dx is None else dx[images],
                    weight_gradients=dweights,
                    workspace=workspace,
                )
        return dx, dmaps, None, *dweights


def _pixels_as_products(groups: int, pixels: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
    """Computes what `_Product` does, with the channels of a pixel together."""
    y = attention_as_products(
        weights, rearrange(pixels, "batch ... channels -> batch channels ..."), maps, groups
    )
    return rearrange(y, "batch outputs ... -> batch ... outputs")


def _queries(images: slice, tile: Sequence[QueryTile]) -> tuple[slice, ...]:
    return images, *(part.queries for part in tile)


def _image_tiles(
    pixels: Tensor, weights: Sequence[Tensor]
) -> list[tuple[slice, tuple[QueryTile, ...]]]:
    """Cuts one call into images and tiles of queries; on a GPU it is one piece."""
    if pixels.device.type == "cpu":
        most = _CACHE // max(1, pixels.shape[-1] * pixels.element_size())
        eps = torch.finfo(pixels.dtype).eps
        tiles, images = tiles_of_all_axes([weight.detach() for weight in weights], eps / 64, most)
    else:
        whole = (QueryTile(slice(0, w.shape[1]), [slice(0, w.shape[2])] * len(w)) for w in weights)
        tiles, images = [tuple(whole)], max(1, len(pixels))
    return list(product(chunks(len(pixels), images), tiles))


def tiles_of_all_axes(
    weights: Sequence[Float[Tensor, "heads _ _"]], negligible: float, pixels: int
) -> tuple[list[tuple[QueryTile, ...]], int]:
    """Cuts the grid of queries into tiles of about so many pixels, and returns how many images go together (≥ 1)."""
    others = [  # the third of three axes keeps its keys, so that the axes after the second are one block of memory
        axis_tiles(weight, negligible, weight.shape[1], cut_keys=number < 2)
        for number, weight in enumerate(weights[1:], start=1)
    ]
    per_row = prod(max(tile.longest for tile in tiles) for tiles in others)
    first = axis_tiles(weights[0], negligible, max(pixels // max(1, per_row), _SHORT))
    largest = per_row * max(tile.longest for tile in first)
    return list(product(first, *others)), max(1, pixels // max(1, largest))


def axis_tiles(
    weights: Float[Tensor, "heads queries keys"],
    negligible: float,
    longest: int,
    *,
    cut_keys: bool = True,
) -> list[QueryTile]:
    """Cuts the queries along one axis into tiles: of at most `longest` queries, and fewer if heads are narrow."""
    # `negligible` is the attention that may be left out on either side, per query; 0 leaves out exact zeros only.
    _, queries, keys = weights.shape
    if cut_keys:
        tiles = _narrow_tiles(weights, negligible, min(_SHORT, longest))
        used = sum(length_of(part) for tile in tiles for part in tile.keys)
        if used < WORTHWHILE * keys * sum(len(tile.keys) for tile in tiles):
            return tiles
    return [QueryTile(part, [slice(0, keys)] * len(weights)) for part in chunks(queries, longest)]


def _narrow_tiles(weights: Tensor, negligible: float, length: int) -> list[QueryTile]:
    """Cuts the queries into tiles of a length, each with the keys that matter to its queries."""
    parts, keys = chunks(weights.shape[1], length), weights.shape[2]
    most = torch.stack([weights[:, part].amax(1) for part in parts])
    lows = (
        (most.cumsum(-1) <= negligible).sum(-1).clamp(max=keys - 1)
    )  # where no key matters, one stays
    highs = (keys - (most.flip(-1).cumsum(-1) <= negligible).sum(-1)).maximum(lows + 1)
    spans = [list(map(slice, *ends)) for ends in zip(lows.tolist(), highs.tolist(), strict=True)]
    return [QueryTile(part, own) for part, own in zip(parts, spans, strict=True)]


def mix(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    tile: Sequence[QueryTile],
    head: int,
    pixels: Float[Tensor, "images *spatial channels"],
    workspace: Workspace,
) -> list[Tensor]:
    """Takes one head's weighted means along one axis after the other; returns the pixels before, between and after."""
    # Each is (all axes before, keys along the axis, all axes after); the last is (pixels, channels).
    stage = _region(pixels, tile, head).flatten(2)
    stages = [stage]
    for number, (weight, part) in enumerate(zip(weights, tile, strict=True)):
        rows = weight[head, part.queries, part.keys[head]]
        shape = (stage.shape[0], rows.shape[0], stage.shape[2])
        mixed = torch.bmm(
            rows.expand(stage.shape[0], -1, -1), stage, out=workspace.get(f"mixed {number}", *shape)
        )
        if number + 1 < len(weights):
            stage = mixed.view(shape[0] * shape[1], length_of(tile[number + 1].keys[head]), -1)
        else:
            stage = mixed.view(-1, pixels.shape[-1])
        stages.append(stage)
    return stages


def mix_backward(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    tile: Sequence[QueryTile],
    head: int,
    stages: Sequence[Tensor],
    gradient: Float[Tensor, "pixels channels"],
    *,
    pixels_gradient: Float[Tensor, "images *spatial channels"] | None,
    weight_gradients: Sequence[Float[Tensor, "heads _ _"] | None],
    workspace: Workspace,
) -> None:
    """Backpropagates from the last result of `mix`; adds the gradients that are wanted.

    The stages are those that `mix` returned. None of them may lie in memory that this function uses.
    """
    for number in reversed(range(len(weights))):
        part, stage = tile[number], stages[number]
        rows = weights[number][head, part.queries, part.keys[head]]
        upstream = gradient.view(stage.shape[0], rows.shape[0], stage.shape[2])
        into = weight_gradients[number]
        if into is not None:
            into[head, part.queries, part.keys[head]] += _summed_products(
                upstream, stage, workspace
            )
        back = rows.mT.expand(stage.shape[0], -1, -1)
        if number:
            gradient = torch.bmm(back, upstream, out=workspace.get(f"back {number}", *stage.shape))
        elif pixels_gradient is not None:
            _region(pixels_gradient, tile, head).view(stage.shape).baddbmm_(back, upstream)


def _summed_products(
    upstream: Float[Tensor, "before queries behind"],
    stage: Float[Tensor, "before keys behind"],
    workspace: Workspace,
) -> Float[Tensor, "queries keys"]:
    """Multiplies queries with keys and sums over all else, with nothing larger than the factors in memory."""
    before, queries, behind = upstream.shape
    keys = stage.shape[1]
    if queries * keys > (queries + keys) * behind:
        return einsum(upstream, stage, "before queries behind, before keys behind -> queries keys")
    return torch.bmm(upstream, stage.mT, out=workspace.get("products", before, queries, keys)).sum(
        0
    )


def _region(pixels: Tensor, tile: Sequence[QueryTile], head: int) -> Tensor:
    """Returns a view of the keys that a head looks at."""
    return pixels[(slice(None), *(part.keys[head] for part in tile))]


def add_head(
    out: Float[Tensor, "pixels outputs"],
    mixed: Float[Tensor, "pixels channels"],
    weight: Float[Tensor, "outputs channels_per_group"],
    groups: int,
) -> None:
    """Adds one head's matrix times its pixels: out += W_h · mixed."""
    if groups == 1:
        out.addmm_(mixed, weight.contiguous().mT)
    elif groups == out.shape[1] == mixed.shape[1]:
        out.addcmul_(mixed, weight[:, 0])
    else:
        _split(out, groups).baddbmm_(_split(mixed, groups), weight.unflatten(0, (groups, -1)).mT)


def head_backward(
    gradient: Float[Tensor, "pixels outputs"],
    weight: Float[Tensor, "outputs channels_per_group"],
    groups: int,
    *,
    out: Float[Tensor, "pixels channels"],
) -> None:
    """Writes the gradient of `add_head` with respect to the mixed pixels into `out`."""
    if groups == 1:
        torch.mm(gradient, weight, out=out)
    elif groups == gradient.shape[1] == out.shape[1]:
        torch.mul(gradient, weight[:, 0], out=out)
    else:
        back = torch.bmm(_split(gradient, groups), weight.unflatten(0, (groups, -1)))
        out.copy_(rearrange(back, "groups pixels channels -> pixels (groups channels)"))


def head_weight_backward(
    gradient: Float[Tensor, "pixels outputs"],
    mixed: Float[Tensor, "pixels channels"],
    groups: int,
    *,
    into: Float[Tensor, "outputs channels_per_group"],
) -> None:
    """Adds the gradient of `add_head` with respect to the head's matrix to `into`."""
    if groups == 1:
        into.addmm_(gradient.mT, mixed)
    elif groups == gradient.shape[1] == mixed.shape[1]:
        into[:, 0] += (gradient * mixed).sum(0)
    else:
        into.unflatten(0, (groups, -1)).baddbmm_(_split(gradient, groups).mT, _split(mixed, groups))


def _split(
    x: Float[Tensor, "pixels channels"], groups: int
) -> Float[Tensor, "groups pixels channels_per_group"]:
    return x.unflatten(1, (groups, -1)).transpose(0, 1)


_CACHE_OF_ALL_HEADS = 1 << 22
"""Bytes of the means of all heads that are worked on at a time, about twice the second-level cache of a core."""

_ALIGNED = 32
"""Images times channels is a multiple of this: other products take up to three times as long (oneDNN, AMX)."""


def attention_of_all_heads(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels"],
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes `separable_attention` along one or two axes on a CPU, with gradients in the dtypes given."""
    return _AllHeads.apply(keys.to(product_dtype(keys)), maps, *weights).movedim(-1, 1)


class _AllHeads(torch.autograd.Function):
    """Attends along each axis, then applies all heads' matrices at once."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(pixels, maps, *weights)
        means, matrix = _Means(weights, pixels.shape[1], pixels), _side_by_side(maps, pixels.dtype)
        y = pixels.new_empty(len(pixels), *means.queries, len(matrix))
        with torch.autocast("cpu", enabled=False):
            for images in chunks(len(pixels), means.images):
                mixed = means.together(
                    means.along_cols(means.along_rows(means.lay_out(pixels[images], "pixels")))
                )
                out = torch.mm(
                    mixed, matrix.mT, out=means.space.get("outputs", len(mixed), len(matrix))
                )
                rows, *cols = means.queries
                means.restore(out.view(*cols or [1], rows, -1), y[images].movedim(-1, 1))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, *weights = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            compute = partial(_as_products, pixels.dtype)
            return tuple(
                backward_to_differentiate(compute, (pixels, maps, *weights), needs, gradient)
            )
        means, matrix = _Means(weights, pixels.shape[1], pixels), _side_by_side(maps, pixels.dtype)
        dx, sums = (
            torch.empty_like(pixels) if needs[0] else None,
            torch.promote_types(pixels.dtype, torch.float32),
        )
        dmatrix = torch.zeros_like(matrix, dtype=sums) if needs[1] else None
        pairs = zip(weights, needs[2:], strict=True)
        dweights = [
            torch.zeros_like(weight, dtype=sums) if need else None for weight, need in pairs
        ]
        drows, dcols = [*dweights, None][:2]
        with torch.autocast("cpu", enabled=False):
            for images in chunks(len(pixels), means.images):
                laid_out = means.lay_out(pixels[images], "pixels")
                by_rows = means.along_rows(laid_out)
                by_both = means.along_cols(by_rows)
                mixed = means.together(by_both)
                dy = means.lay_out(gradient[images].movedim(-1, 1), "outputs").view(-1, len(matrix))
                if dmatrix is not None:
                    dmatrix += torch.mm(dy.mT, mixed)
                if dx is None and not any(needs[2:]):
                    continue
                dmixed = torch.mm(dy, matrix, out=mixed).view(-1, means.heads, means.channels)
                by_both.view(means.heads, -1, means.channels).copy_(dmixed.transpose(0, 1))
                back = means.rows_backward(
                    means.cols_backward(by_both, by_rows, dcols), laid_out, drows
                )
                if dx is not None:
                    means.restore(back, dx[images])
        dmaps = (
            None
            if dmatrix is None
            else dmatrix.unflatten(1, (len(maps), -1)).transpose(0, 1).to(maps.dtype)
        )
        return (
            dx,
            dmaps,
            *(d if d is None else d.to(w.dtype) for d, w in zip(dweights, weights, strict=True)),
        )


def _as_products(dtype: torch.dtype, pixels: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
    """Computes what `_AllHeads` does, in operations that torch can differentiate."""
    y = attention_as_products(
        [weight.to(dtype) for weight in weights], pixels, maps.to(dtype), groups=1
    )
    return y.movedim(1, -1)


def _side_by_side(maps: Tensor, dtype: torch.dtype) -> Float[Tensor, "outputs inputs"]:
    return maps.to(dtype).transpose(0, 1).flatten(1)


class _Means:
    """Means of all heads for some images at a time, in memory that each part of the batch uses again."""

    # A single axis counts as the rows of one column.

    def __init__(self, weights: Sequence[Tensor], channels: int, like: Tensor) -> None:
        rows, *cols = (weight.to(like.dtype) for weight in weights)
        self.heads, self.channels, self.queries = len(rows), channels, [w.shape[1] for w in weights]
        self.rows, self.cols = rows.flatten(0, 1), cols[0] if cols else None
        self.rows_back = (
            self.rows.mT.contiguous()
        )  # products with transposed views take up to twice as long
        self.cols_back = None if self.cols is None else self.cols.mT.contiguous()
        pixels = max(prod(self.queries), prod(w.shape[2] for w in weights))
        fitting = _CACHE_OF_ALL_HEADS // max(
            1, pixels * self.heads * channels * like.element_size()
        )
        aligned = _ALIGNED // gcd(_ALIGNED, channels)
        self.images = max(1, fitting // aligned) * aligned
        self.space = Workspace(like)

    def lay_out(
        self, x: Float[Tensor, "images channels *spatial"], name: str
    ) -> Float[Tensor, "cols rows inner"]:
        """Copies pixels, columns first, images and channels last."""
        pixels = (x[..., None] if self.cols is None else x).permute(3, 2, 0, 1)
        return self.space.get(name, *pixels.shape).copy_(pixels).flatten(2)

    def restore(
        self,
        pixels: Float[Tensor, "cols rows inner"],
        into: Float[Tensor, "images channels *spatial"],
    ) -> None:
        """Undoes `lay_out`."""
        apart = pixels.unflatten(2, into.shape[:2]).permute(2, 3, 1, 0)
        into.copy_(apart[..., 0] if self.cols is None else apart)

    def along_rows(
        self, pixels: Float[Tensor, "cols rows inner"]
    ) -> Float[Tensor, "heads cols means"]:
        """Takes the means along the rows."""
        out = self.space.get("rows", len(pixels), len(self.rows), pixels.shape[2])
        return self._by_head(torch.bmm(self.rows.expand(len(pixels), -1, -1), pixels, out=out))

    def along_cols(
        self, rows: Float[Tensor, "heads cols inner"]
    ) -> Float[Tensor, "heads cols_out inner"]:
        """Takes the means along the columns, if there are any."""
        if self.cols is None:
            return rows
        return torch.bmm(
            self.cols, rows, out=self.space.get("cols", *self.cols.shape[:2], rows.shape[2])
        )

    def together(
        self, means: Float[Tensor, "heads cols_out inner"]
    ) -> Float[Tensor, "pixels inputs"]:
        """Copies means, the heads of a pixel side by side."""
        apart = means.view(self.heads, -1, self.channels)
        out = self.space.get("together", apart.shape[1], self.heads, self.channels)
        return out.copy_(apart.transpose(0, 1)).flatten(1)

    def cols_backward(
        self, upstream: Tensor, means: Tensor, into: Tensor | None
    ) -> Float[Tensor, "heads cols inner"]:
        """Backpropagates through `along_cols`, adding the weights' gradient to `into`."""
        if self.cols_back is None:
            return upstream
        if into is not None:
            for head in range(self.heads):  # half as long as one product of all heads
                into[head] += torch.mm(upstream[head], means[head].mT)
        inner = upstream.shape[2] // self.queries[0]
        back = self.space.get("back", means.shape[1], len(self.rows), inner)
        return torch.bmm(self.cols_back, upstream, out=self._by_head(back))

    def rows_backward(
        self, upstream: Tensor, pixels: Tensor, into: Tensor | None
    ) -> Float[Tensor, "cols rows inner"]:
        """Backpropagates through `along_rows`, adding the weights' gradient to `into`."""
        rows = upstream.transpose(0, 1).reshape(len(pixels), len(self.rows), -1)
        if into is not None:
            into += torch.bmm(rows, pixels.mT).sum(0, dtype=into.dtype).view(into.shape)
        back = self.space.get("pixels back", *pixels.shape)
        return torch.bmm(self.rows_back.expand(len(pixels), -1, -1), rows, out=back)

    def _by_head(
        self, rows: Float[Tensor, "cols stacked inner"]
    ) -> Float[Tensor, "heads cols means"]:
        return rows.view(len(rows), self.heads, -1).transpose(0, 1)
