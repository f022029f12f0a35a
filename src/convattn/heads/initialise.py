"""Changes the weights of a vision transformer in place, so that its heads start near the taps of a convolution."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn import functional

from convattn.errors import ArgumentError, UnsupportedModelError, must_be, require_name
from convattn.grid import PerAxis, axis_lists
from convattn.heads.catalogue import PATCH_NETWORKS, read_matrices, survey
from convattn.heads.families.attention_class import PatchNetwork, TokenAttention
from convattn.heads.layout import lattice
from convattn.structure import find_empty, full_name

Kind: TypeAlias = Literal["mimetic", "impulse", "exact"]
"""A way to start heads: two published ones, and the score of a quadratic encoding, written as queries and keys."""

_QUERY_KEY, _VALUE_OUT = (0.7, 0.7), (0.4, -0.4)
"""Mimetic products: factors of normal numbers of variance 1/D, and of the identity."""

_PEAK, _OFF, _TRUNCATED, _NORM = 1000.0, 3.0, 0.6, 7.0
"""Impulse: scores at the tap, factor and deviation of those off it, and the norm of W_Q and W_K."""

_FEATURES = 3
"""Features of a position in which a quadratic score is linear (theorem 1 asks for D_p ≥ 3)."""

_SHARPNESS = 20.0
"""α of the exact kind, in 1/patch²: the mass off the tap is about 4 e^−α."""


@torch.no_grad()
def init_heads_(
    vit: nn.Module,
    kind: Kind,
    *,
    kernel_size: PerAxis = 3,
    generator: torch.Generator | None = None,
) -> tuple[float, ...]:
    """Changes the weights of attention in place, so that head h starts near tap h of a convolution of patches.

    Modules, the names of parameters, and the function that they compute stay as they are. Head h of N_h looks at tap
    h mod K, row by row. Position is read from the position embedding: P holds its rows at the patches, layer-normed.

    - "mimetic": W_Q W_Kᵀ is 0.7 Z/√D + 0.7 I cut to the width of a head, W_V W_out is 0.4 Z/√D − 0.4 I, Z normal. Heads
      look at their own patch, if anywhere.
    - "impulse": scores P W_Q W_Kᵀ Pᵀ are 1000 at the tap and 3 times truncated normal numbers elsewhere, by P⁺, cut to
      the width of a head; W_Q and W_K have the norm 7; W_V and W_out are mimetic.
    - "exact": scores are −α‖δ − Δ_h‖² up to what softmax cancels, linear in three features of a position, so heads of
      width 3 hold them if P has as many independent rows as there are patches; W_V and W_out stay.

    Source: Trockman and Kolter, ICML 2023 (mimetic); impulse initialisation, NeurIPS 2025; Cordonnier, Loukas, Jaggi,
    ICLR 2020, Theorem 1 (exact).

    Args:
        vit: timm's VisionTransformer (vit_*, deit_*), or transformers' ViTModel, ViTForImageClassification or
            ViTForMaskedImageModeling.
        kind: "mimetic", "impulse" or "exact".
        kernel_size: Taps along rows and columns, in patches: an odd number, or two.
        generator: Random generator on the CPU; None takes torch's default.

    Returns:
        For each layer the share of attention on the tap (on the own patch for "mimetic"), a mean over heads and the
        queries whose tap is inside the grid, where the tokens are P: in later layers, and where patches outweigh the
        embedding, less holds.

    Raises:
        UnsupportedModelError: The network is of another class, or heads of an "exact" start are narrower than 3.
        ArgumentError: An argument is out of range.
        UnknownNameError: There is no such kind.

    Example:
        >>> import timm
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1)
        >>> (mass,) = init_heads_(vit, "exact")
        >>> mass > 0.99
        True
    """
    kernel = axis_lists("kernel_size", kernel_size, 2, least=1)
    if any(taps % 2 == 0 for taps in kernel):
        expected = "odd, so that there is a patch in the middle"
        raise ArgumentError(must_be("kernel_size", expected, kernel_size))
    require_name("kind", kind, get_args(Kind))
    network = PATCH_NETWORKS.get(full_name(type(vit)))
    if network is None:
        raise UnsupportedModelError(
            f"cannot initialise the heads of {type(vit).__name__}: supported are VisionTransformer and"
            " VisionTransformerDistilled of timm, ViTModel and ViTFor… of transformers"
        )
    if (name := find_empty(vit)) is not None:
        raise ArgumentError(f"vit must have weights, but {name} is on the meta device")
    layers = _layers(vit, network)
    if kind == "exact" and layers[0].head_width < _FEATURES:
        raise UnsupportedModelError(
            f"heads must be at least {_FEATURES} wide for an exact start, but are {layers[0].head_width}"
        )
    grid = _grid(vit.get_submodule(network.embedding))
    positions = _positions(vit, math.prod(grid))
    sides = [range(-(count // 2), count // 2 + 1) for count in kernel]
    taps = [*product(*sides)]
    if kind == "mimetic":
        taps = taps[len(taps) // 2 :][:1]
    return tuple(_start(layer, kind, positions, grid, taps, generator) for layer in layers)


def _start(
    layer: TokenAttention,
    kind: Kind,
    positions: Float64[Tensor, "patches width"],
    grid: tuple[int, ...],
    taps: Sequence[tuple[int, ...]],
    generator: torch.Generator | None,
) -> float:
    """Changes the heads of a layer; returns the mean share of their attention on the tap, between P."""
    for part in (layer.query, layer.key):
        if part.bias is not None:
            part.bias.zero_()
    shares = []
    for head in range(layer.heads):
        tap = taps[head % len(taps)]
        at_tap = _at_tap(grid, tap)
        if kind == "mimetic":
            near = _near_identity(layer.query.in_features, *_QUERY_KEY, generator)
            query, key = _halves(near, layer.head_width)
        elif kind == "impulse":
            query, key = _impulse_scores(layer, positions, at_tap, generator)
        else:
            query, key = _exact_scores(layer, positions, grid, tap)
        first = head * layer.head_width
        query = _write(layer.query, first, query)
        key = _write(layer.key, first, key)
        scores = layer.scale * (positions @ query) @ (positions @ key).T
        weight = (scores.softmax(-1) * at_tap).sum() / at_tap.sum().clamp(min=1)
        shares.append(weight.item())
    if kind != "exact":
        near = _near_identity(layer.value.in_features, *_VALUE_OUT, generator)
        value, output = _halves(near, layer.value.out_features)
        _write(layer.value, 0, value)
        layer.output.weight.copy_(output)
    return sum(shares) / len(shares)


def _write(layer: nn.Linear, first: int, matrix: Tensor) -> Tensor:
    """Writes the matrix of some outputs of a map from the `first` on; returns it as rounded there."""
    rows = layer.weight[first : first + matrix.shape[1]]
    return rows.copy_(matrix.T).T.to(matrix)


def _grid(embedding: Any) -> tuple[int, ...]:
    """Returns rows and columns of the patches of a network's own images, from timm's or transformers' embedding."""
    if getattr(embedding, "grid_size", None) is not None:
        return tuple(embedding.grid_size)
    sizes = getattr(embedding, "img_size", None) or embedding.image_size
    return tuple(size // side for size, side in zip(sizes, embedding.patch_size, strict=True))


def _layers(vit: nn.Module, network: PatchNetwork) -> list[TokenAttention]:
    """Finds the attention in the blocks, or raises with all reasons why it cannot be initialised."""
    layers = []
    refused = []
    if not isinstance(getattr(vit, "patch_drop", nn.Identity()), nn.Identity):
        refused.append(
            "  patch_drop (PatchDropout): it drops patches, and the remaining ones form no grid"
        )
    for layer in survey(vit):
        if not layer.name.startswith(network.blocks):
            continue
        try:
            read = read_matrices(vit.get_submodule(layer.name))
        except UnsupportedModelError as error:
            kind = layer.kind.rpartition(".")[2]
            refused.append(f"  {layer.name} ({kind}): {error}")
            continue
        if not isinstance(read.query_norm, nn.Identity):
            refused.append(f"  {layer.name}: it normalises queries and keys")
        layers.append(read)
    if refused or not layers:
        reasons = "\n".join(refused or ["  no attention of a known class was found in its blocks"])
        raise UnsupportedModelError(
            f"cannot initialise the heads of {type(vit).__name__}:\n{reasons}"
        )
    return layers


def _positions(vit: nn.Module, patches: int) -> Float64[Tensor, "patches width"]:
    """Returns P: the layer-normed position embedding of the patches."""
    for name, parameter in vit.named_parameters():
        if name.endswith(("pos_embed", "position_embeddings")):
            rows = parameter[0, -patches:].cpu().double()
            return functional.layer_norm(rows, rows.shape[1:])
    raise UnsupportedModelError(
        f"cannot initialise the heads of {type(vit).__name__}: it has no position embedding"
    )


def _at_tap(grid: tuple[int, ...], tap: Sequence[int]) -> Float64[Tensor, "queries keys"]:
    """Returns 1 at the key that a tap looks at from each query, 0 elsewhere; nothing beyond the grid."""
    sides = []
    for size, step in zip(grid, tap, strict=True):
        sides.append(torch.ones(size, size, dtype=torch.float64).triu(step).tril(step))
    return torch.kron(*sides)


def _near_identity(
    size: int, normal: float, identity: float, generator: torch.Generator | None
) -> Float64[Tensor, "width width"]:
    drawn = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return normal * drawn / size**0.5 + identity * torch.eye(size, dtype=torch.float64)


def _halves(whole: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors the best approximation of a rank into equal halves, A Bᵀ."""
    left, values, right = torch.linalg.svd(whole, full_matrices=False)
    roots = values[:rank].sqrt()
    return left[:, :rank] * roots, right[:rank].T * roots


def _impulse_scores(
    layer: TokenAttention,
    positions: Float64[Tensor, "patches width"],
    at_tap: Float64[Tensor, "queries keys"],
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    drawn = nn.init.trunc_normal_(torch.empty_like(at_tap), std=_TRUNCATED, generator=generator)
    target = torch.where(at_tap > 0, _PEAK, _OFF * drawn)
    inverse = torch.linalg.pinv(positions)
    query, key = _halves(inverse @ target @ inverse.T, layer.head_width)
    return _NORM * query / query.norm(), _NORM * key / key.norm()


def _exact_scores(
    layer: TokenAttention,
    positions: Float64[Tensor, "patches width"],
    grid: tuple[int, ...],
    tap: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Solves 2α (q + Δ) · k − α ‖k‖², which is −α ‖k − q − Δ‖² but for terms of the query alone."""
    sides = [torch.arange(size, dtype=torch.float64) - (size - 1) / 2 for size in grid]
    places = lattice(sides)
    centres = places + torch.tensor(tap)
    features = functional.pad(2 * centres, (0, 1), value=-1.0) * _SHARPNESS / layer.scale
    keys = torch.cat([places, places.square().sum(1, keepdim=True)], 1)
    inverse = torch.linalg.pinv(positions)
    more = (0, layer.head_width - _FEATURES)
    return functional.pad(inverse @ features, more), functional.pad(inverse @ keys, more)
