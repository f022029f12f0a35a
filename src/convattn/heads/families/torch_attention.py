"""torch's `nn.MultiheadAttention`, as it stands in torchvision's vision transformer."""

from convattn.heads.families.attention_class import AttentionClass, CallContext
from convattn.heads.layout import Layout


def read_torch_attention(call: CallContext) -> Layout:
    """Reads torch's attention inside torchvision's network: a class token, then patches row by row."""
    network = call.parent("conv_proj", "class_token").module
    return call.global_layout(call.grid_of(network.conv_proj), prefix=1)


TORCH_ATTENTION: dict[str, AttentionClass] = {
    "torch.nn.modules.activation.MultiheadAttention": AttentionClass(
        "global", read_torch_attention
    ),
}
"""Classes of attention by full name."""
