"""timm's vision transformers, whose tokens attend to all others: ViT, DeiT, BEiT, EVA, PiT, ConViT, CaiT."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from convattn.errors import UnsupportedModelError
from convattn.heads.families.attention_class import (
    AttentionClass,
    CallContext,
    TokenAttention,
    dropout_rate,
    require_part,
    split_linear,
)
from convattn.heads.layout import OUTSIDE, Layout, global_layout, grouped_layout
from convattn.structure import full_name


def read_tokens(call: CallContext) -> Layout:
    """Reads tokens whose grid is that of the patch embedding, and whose prefix the network counts."""
    for parent in call.parents:
        read = _BY_NETWORK.get(full_name(type(parent.module)))
        if read is not None:
            return read(call, parent)
    network = call.parent("patch_embed").module
    prefix: Any = getattr(network, "num_prefix_tokens", None)
    rows, cols = _grid(call)
    others = call.queries - rows * cols
    if call.keys == call.queries and 0 <= others != prefix:
        raise UnsupportedModelError(
            f"{call.queries} tokens are {others} more than {rows} × {cols} patches, but num_prefix_tokens of"
            f" {type(network).__name__} is {prefix}; set it to {others} if they come first"
        )
    if prefix is None:
        raise UnsupportedModelError(
            f"{type(network).__name__} has no num_prefix_tokens; set it to the number of tokens before the patches"
        )
    return call.global_layout((rows, cols), prefix)


def read_patches(call: CallContext) -> Layout:
    """Reads patches without prefix tokens, which join in later layers only."""
    return call.global_layout(_grid(call))


def read_class_token(call: CallContext) -> Layout:
    """Reads a layer in which the class token looks at itself and all patches."""
    whole = global_layout(_grid(call), 1, pattern="class token")
    return replace(whole, queries=whole.queries[:, :1])


def _read_pit(call: CallContext, stage: CallContext) -> Layout:
    """Reads a stage of PiT, which is given an image and its class tokens apart, and pools the image first."""
    image, tokens = stage.args[0]
    pool = stage.module.pool
    grid = tuple(image.shape[2:]) if pool is None else call.grid_of(pool)
    return call.global_layout(grid, tokens.shape[1])


def _read_naflex(call: CallContext, network: CallContext) -> Layout:
    """Reads NaFlexVit, which is given images, or patches with their rows and columns and which of them are there."""
    x, coordinates, there = (network.argument(*name) for name in enumerate(_NAFLEX_INPUTS))
    module = network.module
    if isinstance(x, dict):
        coordinates, there = x["patch_coord"], x.get("patch_valid")
    elif coordinates is None:
        grid = module.embeds.dynamic_feat_size(x.shape[2:])
        return call.global_layout(grid, module.num_prefix_tokens)
    if there is not None:
        coordinates = coordinates.masked_fill(~there.bool()[..., None], -1)  # outside the grid
    places = coordinates[:1].cpu()
    if not torch.equal(coordinates.cpu(), places.expand_as(coordinates)):
        raise UnsupportedModelError(
            "its images have patches in different places; give it images of one size at a time"
        )
    grid = tuple((places.amax((0, 1)) + 1).tolist())
    patches = grouped_layout(grid, places, pattern="")
    whole = global_layout(grid, module.num_prefix_tokens, keys=patches.keys[0], pattern="patches")
    prefix = whole.queries[:, : module.num_prefix_tokens]
    queries = torch.cat([prefix, patches.queries], 1)
    seen = (queries != OUTSIDE)[:, None].expand(-1, queries.shape[1], -1)
    return replace(whole, queries=queries).with_allowed(seen)


_NAFLEX_INPUTS = ("x", "patch_coord", "patch_valid")
"""Names of what NaFlexVit is called with, in their order."""

_BY_NETWORK = {
    "timm.models.naflexvit.NaFlexVit": _read_naflex,
    "timm.models.pit.Transformer": _read_pit,
}
"""Networks, and stages of them, that say in ways of their own where their tokens lie."""


def _grid(call: CallContext) -> tuple[int, int]:
    return call.grid_of(call.parent("patch_embed").module.patch_embed)


def attention_matrices(attention: Any) -> TokenAttention:
    """Copies the matrices of timm's `Attention`."""
    if not isinstance(attention.norm, nn.Identity):
        raise UnsupportedModelError("it normalises the heads' outputs, which no convolution does")
    if attention.gate is not None:
        raise UnsupportedModelError(
            "it multiplies the heads' outputs by a gate, which no convolution does"
        )
    matrices = convit_matrices(attention)
    if attention.fused_attn:  # which has a scale of its own
        matrices = replace(matrices, scale=matrices.head_width**-0.5)
    return replace(matrices, query_norm=attention.q_norm, key_norm=attention.k_norm)


def convit_matrices(attention: Any) -> TokenAttention:
    """Copies the matrices of ConViT's later layers, `MHSA`, and of other layers with these names."""
    query, key, value = split_linear(require_part(attention, "qkv"), 3)
    return TokenAttention(
        heads=int(attention.num_heads),
        query=query,
        key=key,
        value=value,
        output=require_part(attention, "proj"),
        dropout=dropout_rate(attention, "attn_drop"),
        scale=float(attention.scale),
        after=attention.proj_drop,
    )


_ONE_PRODUCT = "it computes attention and feed-forward in one product"
_BY_POSITION_TOO = (
    "timm.layers.attention.AttentionRope",
    "timm.models.beit.Attention",
    "timm.models.eva.EvaAttention",
    "timm.models.vision_transformer_relpos.RelPosAttention",
)

TIMM_VITS: dict[str, AttentionClass] = {
    **dict.fromkeys(_BY_POSITION_TOO, AttentionClass("global", read_tokens)),
    "timm.layers.attention.Attention": AttentionClass(
        "global", read_tokens, matrices=attention_matrices
    ),
    "timm.models.vision_transformer.ParallelScalingBlock": AttentionClass(refused=_ONE_PRODUCT),
    "timm.models.convit.GPSA": AttentionClass("global", read_patches),
    "timm.models.convit.MHSA": AttentionClass("global", read_tokens, matrices=convit_matrices),
    "timm.models.cait.TalkingHeadAttn": AttentionClass("global", read_patches),
    "timm.models.cait.ClassAttn": AttentionClass("class token", read_class_token),
}
"""Classes of attention by full name."""
