"""Reads timm's vision transformers (vit_*, deit_*). Classes are recognised by full name; timm is not imported."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from convattn.adapters.native import NativeAttention, NativeTransformer, PatchGrid, linear, split_linear
from convattn.adapters.readable import read_layers, require_linear
from convattn.convert.classes import full_name
from convattn.errors import ArgumentError, UnsupportedModelError, must_be
from convattn.records import LeftAlone

TIMM = ("timm.models.vision_transformer.VisionTransformer", "timm.models.deit.VisionTransformerDistilled")
"""Classes that `read_timm` reads."""

_ATTENTION = "timm.layers.attention.Attention"
_BLOCKS = {
    "timm.models.vision_transformer.ParallelScalingBlock": "it computes attention and feed-forward in one product",
    "timm.models.vision_transformer.DiffParallelScalingBlock": "it takes the difference of two attentions",
    "timm.layers.diff_attention.DiffAttention": "it takes the difference of two attentions",
    "timm.layers.attention.AttentionRope": "it rotates queries and keys by their positions",
}
_POOLS = ("timm.layers.attention_pool.AttentionPoolLatent", "timm.layers.attention_pool.AttentionPoolPrr")


@final
class TimmAttention(nn.Module):
    """A layer from tokens to tokens with the call signature of timm's attention."""

    def __init__(self, tokens: nn.Module) -> None:
        """Wraps the layer."""
        super().__init__()
        self.tokens = tokens

    def forward(
        self, x: Float[Tensor, "batch tokens width"], attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Float[Tensor, "batch tokens outputs"]:
        """Attends; a mask or causal attention raises ArgumentError."""
        if attn_mask is not None:
            raise ArgumentError("attn_mask must be None: heads that attend by position take no mask")
        if is_causal:
            raise ArgumentError(must_be("is_causal", "False", is_causal, because="patches have no order in time"))
        return self.tokens(x)


def read_timm(vit: nn.Module) -> NativeTransformer:
    """Reads one of `TIMM` without copying its tensors and modules.

    If parts of it compute something else, UnsupportedModelError names them all.
    """
    reasons = []
    if not isinstance(vit.patch_drop, nn.Identity):
        reasons.append("patch_drop (PatchDropout): it drops patches, and the remaining ones form no grid")
    none = "blocks: no supported attention was found"
    layers = read_layers(vit, (_ATTENTION, *_BLOCKS), read_timm_attention, within="blocks.", reasons=reasons, none=none)
    embed: nn.Module = vit.patch_embed  # type: ignore[assignment]
    rows, cols = embed.grid_size  # type: ignore[misc]
    pools = [(name, module) for name, module in vit.named_modules() if full_name(type(module)) in _POOLS]
    return NativeTransformer(
        layers=layers,
        prefix=int(vit.num_prefix_tokens),  # type: ignore[arg-type]
        grid=PatchGrid((int(rows), int(cols)), rows_and_cols_of_timm),
        embedding="patch_embed",
        wrap=TimmAttention,
        left=tuple(LeftAlone(name, type(module).__name__, "it pools the tokens at the end") for name, module in pools),
    )


def rows_and_cols_of_timm(embed: nn.Module, image: tuple[int, int]) -> tuple[int, int]:
    """Returns rows and columns of the patches into which timm's embedding cuts an image of this height and width."""
    rows, cols = embed.dynamic_feat_size(image)  # type: ignore[operator]
    return int(rows), int(cols)


def read_timm_attention(names: tuple[str, ...], attention: nn.Module) -> NativeAttention:
    """Reads one layer; a part that computes something else raises UnsupportedModelError with the reason alone."""
    kind = full_name(type(attention))
    if kind != _ATTENTION:
        raise UnsupportedModelError(_BLOCKS[kind])
    if not isinstance(attention.norm, nn.Identity):
        raise UnsupportedModelError("it normalises the heads' outputs, which no convolution does")
    if attention.gate is not None:
        raise UnsupportedModelError("it multiplies the heads' outputs by a gate, which no convolution does")
    qkv, proj = require_linear(attention, "qkv"), require_linear(attention, "proj")
    query, key, value = split_linear(qkv, 3)
    return NativeAttention(
        names=names,
        heads=int(attention.num_heads),  # type: ignore[arg-type]
        query=query,
        key=key,
        value=value,
        output=linear(proj.weight, proj.bias, like=proj),
        query_norm=attention.q_norm,  # type: ignore[arg-type]
        key_norm=attention.k_norm,  # type: ignore[arg-type]
        dropout=float(attention.attn_drop.p),  # type: ignore[union-attr, arg-type]
        scale=None if attention.fused_attn else float(attention.scale),  # type: ignore[arg-type]
        after=attention.proj_drop,  # type: ignore[arg-type]
    )
