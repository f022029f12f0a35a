"""torchvision's vision transformer, whose attention is torch's own module."""

from torch import nn

from convattn.adapters.attention.layout import Layout
from convattn.adapters.attention.seen import Read, Seen

_HOME = "torchvision.models.vision_transformer"


def read_torch_attention(seen: Seen) -> Layout:
    """Reads torch's attention inside torchvision's network: a class token, then patches row by row."""
    network = seen.parent_of_kind(f"{_HOME}.VisionTransformer").module
    embedding: nn.Module = network.conv_proj  # type: ignore[assignment]
    return seen.global_layout(seen.grid_of(embedding), 1, "the output of conv_proj, and the class token before it")


TORCHVISION_VIT: dict[str, tuple[str, Read]] = {
    "torch.nn.modules.activation.MultiheadAttention": ("global", read_torch_attention),
}
"""Family and reader by full name of the class."""
