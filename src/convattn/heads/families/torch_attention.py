"""torch's `nn.MultiheadAttention`, as it stands in torchvision's vision transformer."""

from torch import nn

from convattn.heads.families.attention_class import AttentionClass, CallContext
from convattn.heads.layout import Layout

_VIT = "torchvision.models.vision_transformer.VisionTransformer"


def read_torch_attention(call: CallContext) -> Layout:
    """Reads torch's attention inside torchvision's network: a class token, then patches row by row."""
    parent = call.parent_of_kind(_VIT)
    embedding: nn.Module = parent.module.conv_proj  # type: ignore[assignment]
    return call.global_layout(call.grid_of(embedding), prefix=1)


TORCH_ATTENTION: dict[str, AttentionClass] = {
    "torch.nn.modules.activation.MultiheadAttention": AttentionClass(
        "global", read_torch_attention
    ),
}
"""Classes of attention by full name."""
