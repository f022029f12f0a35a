"""Modules that are known, and are no attention over positions or one that no layout describes, with the reason."""

_CHANNELS = "it attends over channels, not over positions"
_LINEAR = "it has no softmax over positions (linear attention), so no weights"
_POOL = "its queries are learned and have no position: it pools the tokens"

REFUSED: dict[str, str] = {
    "timm.layers.attention_pool.AttentionPoolLatent": _POOL,
    "timm.layers.attention_pool.AttentionPoolPrr": _POOL,
    "timm.layers.attention_pool2d.AttentionPool2d": _POOL,
    "timm.layers.attention_pool2d.RotAttentionPool2d": _POOL,
    "timm.layers.diff_attention.DiffAttention": "it takes the difference of two attentions",
    "timm.models.vision_transformer.DiffParallelScalingBlock": "it takes the difference of two attentions",
    "timm.models.xcit.XCA": _CHANNELS,
    "timm.models.edgenext.CrossCovarianceAttn": _CHANNELS,
    "timm.models.davit.ChannelAttention": _CHANNELS,
    "timm.models.davit.ChannelAttentionV2": _CHANNELS,
    "timm.models.mobilevit.LinearSelfAttention": _LINEAR,
    "timm.layers.attention2d.MultiQueryAttentionV2": "it shares one key and value between heads and is not read",
    "timm.models.efficientvit_mit.LiteMLA": _LINEAR,
    "timm.models.coat.FactorAttnConvRelPosEnc": _LINEAR,
    "timm.models.swiftformer.EfficientAdditiveAttention": _LINEAR,
    "timm.models.levit.Attention": "nothing around it says which grid its tokens form",
    "timm.models.levit.AttentionDownsample": "nothing around it says which grid its tokens form",
    "timm.models.volo.OutlookAttention": "its weights come from a linear map of the query alone, without keys",
    "transformers.models.siglip.modeling_siglip.SiglipMultiheadAttentionPoolingHead": _POOL,
    "convattn.adapters.patch_attention.GatedPatchAttention": "it mixes what two attentions gave out",
    "convattn.layers.frozen.FrozenAttention": "it is frozen and holds no weights; take the layer before `freeze`",
}
"""Reason by full name of the class."""
