"""Attention over prefix tokens and patches, with heads that attend to patches by relative position."""

import math
from collections.abc import Sequence
from typing import final

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from convattn.encodings import Quadratic
from convattn.functional import attention_weights, displacement_scores
from convattn.functional.torch_modes import without_autocast
from convattn.grid import Geometry
from convattn.heads.families.attention_class import TokenAttention
from convattn.heads.patch_grid import PatchGrid
from convattn.layers import FactoredValues, RelativeAttention2d


@final
class PatchAttention(nn.Module):
    """Attention by position alone: a relative-attention layer over the grid of patches.

    A prefix token has no position. It attends like the average patch, A[prefix, k] = E_q A[q, k], so its output is the
    mean of theirs.

    Attributes:
        layer: The layer, from image of patches to image of patches; `network_to_conv` makes a convolution of it.
        prefix: Number of tokens before the patches.
        grid: Rows and columns of the patches.
        after: Dropout of the output.

    Example:
        >>> layer = RelativeAttention2d(6, 6, num_heads=9, encoding="quadratic", kernel_size=3, padding=1)
        >>> attention = PatchAttention(layer, PatchGrid((3, 5), lambda module, size: size), prefix=1)
        >>> attention(torch.zeros(2, 16, 6)).shape
        torch.Size([2, 16, 6])
    """

    def __init__(
        self,
        layer: RelativeAttention2d,
        grid: PatchGrid,
        *,
        prefix: int,
        after: nn.Module | None = None,
    ) -> None:
        """Wraps a layer that keeps the image's size; `after` is the dropout of the output."""
        super().__init__()
        self.layer = layer
        self.grid = grid
        self.prefix = prefix
        self.after = nn.Identity() if after is None else after

    def forward(
        self, tokens: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch tokens outputs"]:
        """Applies the attention to prefix tokens, then patches row by row; another number of them raises ShapeError."""
        rows, cols = self.grid.require(tokens.shape[1], self.prefix)
        pattern = "batch (rows cols) width -> batch width rows cols"
        image = rearrange(tokens[:, self.prefix :], pattern, rows=rows, cols=cols)
        y = self.layer(image)
        patches = rearrange(y, "batch width rows cols -> batch (rows cols) width")
        means = patches.mean(1, keepdim=True)
        means = means.expand(-1, self.prefix, -1)
        return self.after(torch.cat([means, patches], dim=1))

    def position_layer(self) -> RelativeAttention2d:
        """Returns the attention by position, as a layer from image of patches to image of patches."""
        return self.layer


@final
class GatedPatchAttention(nn.Module):
    """Heads that mix position and content: A = (1 − t) softmax(position) + t softmax(s q kᵀ), t = tanh g, per head.

    By position a head attends to patches, with zeros around their grid; by content it attends to every token. A prefix
    token has no position and attends by content only. With g = 0 patches attend by position only, but the gate still
    gets a gradient: the difference between content and position.

    Source: d'Ascoli et al. 2021 (ConViT), with another gate; `docs/explanation/vision-transformers.md`.

    Attributes:
        encoding: Displacement, in patches, → score per head.
        gate: g, (heads,).
        query: W_q with its bias; heads stand one after the other.
        key: W_k with its bias.
        value: W_v with its bias.
        output: W_out with its bias.
        query_norm: What is applied to each query.
        key_norm: What is applied to each key.
        prefix: Number of tokens before the patches.
        grid: Rows and columns of the patches.
        geometry: Window; its padding is the width of the zeros around the patches.
        dropout: Probability with which an attention weight of content is dropped in training.
        scale: s; None is 1/√D_h.
        after: Dropout of the output.
    """

    def __init__(
        self,
        layer: TokenAttention,
        encoding: Quadratic,
        grid: PatchGrid,
        geometry: Geometry,
        *,
        prefix: int,
        content_share: float = 0.0,
    ) -> None:
        """Takes over the modules of a layer with the heads that it is to have.

        `content_share` is the share of content in each head's attention at the start, in [0, 1).
        """
        super().__init__()
        assert layer.output is not None
        weight = layer.value.weight
        self.encoding = encoding
        gate = weight.new_full((layer.heads,), math.atanh(content_share))
        self.gate = nn.Parameter(gate)
        self.query = layer.query
        self.key = layer.key
        self.value = layer.value
        self.output = layer.output
        self.query_norm = layer.query_norm
        self.key_norm = layer.key_norm
        self.after = layer.after
        self.grid = grid
        self.geometry = geometry
        self.prefix = prefix
        self.dropout = layer.dropout
        self.scale = layer.scale

    def forward(
        self, tokens: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch tokens outputs"]:
        """Applies the attention to prefix tokens, then patches row by row; another number of them raises ShapeError."""
        sizes = self.grid.require(tokens.shape[1], self.prefix)
        query = self.query_norm(self._heads(self.query(tokens)))
        key = self.key_norm(self._heads(self.key(tokens)))
        value = self._heads(functional.linear(tokens, self.value.weight))
        dropout = self.dropout if self.training else 0.0
        content = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, scale=self.scale
        )
        prefix = content[:, :, : self.prefix]
        patches = content[:, :, self.prefix :]
        position = self._by_position(value[:, :, self.prefix :], sizes)
        share = self._content_share().to(value.dtype)[:, None, None]
        mixed = torch.cat([prefix, position + share * (patches - position)], dim=2)
        y = rearrange(mixed, "batch heads tokens width -> batch tokens (heads width)")
        if self.value.bias is not None:
            y = y + self.value.bias
        return self.after(self.output(y))

    def position_layer(self) -> RelativeAttention2d:
        """Copies the attention by position into a layer from image of patches to image of patches, without content.

        Its W_out is scaled by the share 1 − t_h of position. With closed gates it computes what this module does at
        patches.
        """
        share = 1 - self._content_share().detach()
        return layer_by_position(
            self.encoding, self.geometry, self.value, self.output, share
        ).train(self.training)

    def _content_share(self) -> Float[Tensor, " heads"]:
        """Returns t_h, in at least float32."""
        wide = torch.promote_types(self.gate.dtype, torch.float32)
        return torch.tanh(self.gate.to(wide))

    def _heads(
        self, tokens: Float[Tensor, "batch tokens inner"]
    ) -> Float[Tensor, "batch heads tokens width"]:
        pattern = "batch tokens (heads width) -> batch heads tokens width"
        return rearrange(tokens, pattern, heads=len(self.gate))

    def _by_position(
        self, values: Float[Tensor, "batch heads patches width"], sizes: tuple[int, ...]
    ) -> Float[Tensor, "batch heads patches width"]:
        """Averages patches by position, along columns and then along rows."""
        rows, cols = (weights.to(values.dtype) for weights in self._axis_weights(sizes))
        image = values.unflatten(2, sizes)
        pattern = "batch heads rows cols width"
        image = einsum(cols, image, f"heads q cols, {pattern} -> batch heads rows q width")
        image = einsum(rows, image, f"heads q rows, {pattern} -> batch heads q cols width")
        return image.flatten(2, 3)

    def _axis_weights(self, sizes: Sequence[int]) -> list[Float[Tensor, "heads _ _"]]:
        """Returns attention along each axis to the patches; attention to the zeros around them has no effect."""
        axes = self.geometry.axes(sizes)
        device = self.gate.device
        kind = torch.promote_types(self.gate.dtype, torch.float32)
        weights = []
        with without_autocast(device):
            tables = self.encoding.axis_tables(axes, kind, device)
            parts = zip(tables, axes, self.geometry.padding, sizes, strict=True)
            for table, axis, (before, _), size in parts:
                whole = attention_weights(displacement_scores(table, (axis,)))
                weights.append(whole[:, :, before : before + size])
        return weights

    def extra_repr(self) -> str:
        """Returns what the submodules do not show, for printing."""
        return f"prefix={self.prefix}, grid={self.grid}"


@torch.no_grad()
def layer_by_position(
    encoding: Quadratic,
    geometry: Geometry,
    value: nn.Linear,
    output: nn.Linear,
    share: Float[Tensor, " heads"] | None = None,
) -> RelativeAttention2d:
    """Makes the layer y[q] = b + W_out b_v + Σ_h s_h W_out^(h) Σ_k A_h[q, k] W_v^(h) x[k], with s = `share` or 1.

    The weights A_h[q] sum to one over patches and the zeros around them, so the bias b_v of the values is a constant.
    The padding of `geometry` is the width of these zeros.
    """
    heads = encoding.num_heads
    weight = output.weight
    layer = RelativeAttention2d(
        value.in_features,
        output.out_features,
        num_heads=heads,
        encoding=Quadratic(heads, 2),
        head_width=output.in_features // heads,
        kernel_size=geometry.kernel_size,
        padding=geometry.padding,
        device=weight.device,
        dtype=weight.dtype,
    )
    layer.encoding.to(dtype=encoding.centres.dtype).load_state_dict(encoding.state_dict())
    values = layer.values
    bias = layer.bias
    assert isinstance(values, FactoredValues)
    assert bias is not None
    rows = rearrange(value.weight, "(heads width) inputs -> heads width inputs", heads=heads)
    values.value.copy_(rows)
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
