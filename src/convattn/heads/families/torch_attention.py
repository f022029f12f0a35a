"""torch's `nn.MultiheadAttention`, as it stands in torchvision's vision transformer."""

from typing import Any, final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads.families.attention_class import (
    AttentionClass,
    CallContext,
    TokenAttention,
    refuse_options,
    require_part,
    split_linear,
)
from convattn.heads.layout import Layout

_VIT = "torchvision.models.vision_transformer.VisionTransformer"


def read_torch_attention(call: CallContext) -> Layout:
    """Reads torch's attention inside torchvision's network: a class token, then patches row by row."""
    parent = call.parent_of_kind(_VIT)
    embedding: nn.Module = parent.module.conv_proj  # type: ignore[assignment]
    return call.global_layout(call.grid_of(embedding), prefix=1)


@final
class TorchAttention(nn.Module):
    """A layer with the call signature of `nn.MultiheadAttention`, for attention of tokens to themselves."""

    def __init__(self, tokens: nn.Module) -> None:
        """Wraps the layer."""
        super().__init__()
        self.tokens = tokens

    def forward(
        self,
        query: Float[Tensor, "batch tokens width"],
        key: Float[Tensor, "batch tokens width"],
        value: Float[Tensor, "batch tokens width"],
        **options: Any,
    ) -> tuple[Float[Tensor, "batch tokens outputs"], None]:
        """Attends, and returns None in place of attention weights.

        Keys or values that are not the queries' tokens, a mask, or a request for weights raise ArgumentError.
        """
        if not (key is query and value is query):
            raise ArgumentError(
                "query, key and value must be one tensor: heads that average by position have no others"
            )
        asked = {"need_weights": True, **options}
        asked.pop("average_attn_weights", None)  # has no effect without weights
        refuse_options(asked)
        return self.tokens(query), None


def torch_matrices(attention: nn.Module) -> TokenAttention:
    """Copies the matrices of an `nn.MultiheadAttention`."""
    assert isinstance(attention, nn.MultiheadAttention)
    if attention.in_proj_weight is None:
        raise UnsupportedModelError("its keys and values have widths of their own")
    if attention.bias_k is not None or attention.add_zero_attn:
        raise UnsupportedModelError("it has learned keys and values beside the tokens")
    if not attention.batch_first:
        raise UnsupportedModelError("its batch is the second axis")
    output = require_part(attention, "out_proj", NonDynamicallyQuantizableLinear)
    width = attention.embed_dim
    whole = nn.Linear(width, 3 * width, device="meta")
    whole.weight = attention.in_proj_weight
    whole.bias = attention.in_proj_bias
    query, key, value = split_linear(whole, 3)
    return TokenAttention(
        heads=attention.num_heads,
        query=query,
        key=key,
        value=value,
        output=output,
        wrap=TorchAttention,
        dropout=attention.dropout,
    )


TORCH_ATTENTION: dict[str, AttentionClass] = {
    "torch.nn.modules.activation.MultiheadAttention": AttentionClass(
        "global", read_torch_attention, matrices=torch_matrices
    ),
}
"""Classes of attention by full name."""
