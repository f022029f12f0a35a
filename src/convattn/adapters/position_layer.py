"""Attention by position only, as a relative-attention layer over the grid of patches."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings import Quadratic
from convattn.grid import Geometry
from convattn.layers import FactoredValues, RelativeAttention2d

__all__ = ["layer_by_position"]


@torch.no_grad()
def layer_by_position(
    encoding: Quadratic,
    geometry: Geometry,
    value: nn.Linear,
    output: nn.Linear,
    share: Float[Tensor, " heads"] | None = None,
) -> RelativeAttention2d:
    """Makes the layer y[q] = b + W_out b_v + Σ_h s_h W_out^(h) Σ_k A_h[q, k] W_v^(h) x[k].

    The weights A_h[q] sum to one over patches and the zeros around them, so the bias b_v of the values is a constant.

    Args:
        encoding: Where the heads attend; it is copied.
        geometry: Window; its padding is the width of the zeros around the patches.
        value: W_v and b_v; heads stand one after the other.
        output: W_out and b.
        share: s_h; None means 1.

    Returns:
        A layer from image of patches to image of patches, of the same dtype and device.
    """
    heads, weight = encoding.num_heads, output.weight
    layer = RelativeAttention2d(
        value.in_features,
        output.out_features,
        heads,
        Quadratic(heads, 2),
        head_width=output.in_features // heads,
        kernel_size=geometry.kernel_size,
        padding=geometry.padding,
        device=weight.device,
        dtype=weight.dtype,
    )
    layer.encoding.to(dtype=encoding.centres.dtype).load_state_dict(encoding.state_dict())
    values, bias = layer.values, layer.bias
    assert isinstance(values, FactoredValues)
    assert bias is not None
    values.value.copy_(rearrange(value.weight, "(heads width) inputs -> heads width inputs", heads=heads))
    columns = rearrange(weight, "outputs (heads width) -> heads outputs width", heads=heads)
    values.output.copy_(columns if share is None else columns * share[:, None, None])
    bias.zero_()
    if output.bias is not None:
        bias += output.bias
    if value.bias is not None:
        bias += weight @ value.bias
    values.value.requires_grad_(value.weight.requires_grad)
    values.output.requires_grad_(weight.requires_grad)
    return layer
