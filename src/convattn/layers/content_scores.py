"""Content scores: queries and keys from the input, and the terms of the relative score that use them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings import AxisAdditiveEncoding, Encoding, Quadratic
from convattn.encodings.encoding import compute_parameters
from convattn.errors import ArgumentError, must_be
from convattn.functional.fused import Mask, displacement_mask, fused_attention
from convattn.functional.positions import (
    Channels,
    Precision,
    feature_channels,
    in_parts,
    one_hot,
    score_channels,
    second_degree,
    second_degree_error,
    second_degree_key,
    second_degree_query,
)
from convattn.functional.reference import (
    content_scores,
    displacement_places,
    query_pixels,
)
from convattn.functional.torch_modes import is_accelerator, without_autocast
from convattn.grid import Axis, whole_number


@dataclass(frozen=True)
class Content:
    """Which content terms a layer's score has; `content=True` means `Content()`.

    The score is ``((q + u)·k + q·Ŵr_δ)/√key_width + s_h(δ)`` with q = W_q x, k = W_k x: the four terms of
    Transformer-XL, where the encoding's own score s_h(δ) is the position bias.

    Attributes:
        key_width: Width of queries and keys per head, ≥ 1; None means in_channels // num_heads, at least 1.
        position: Whether there is a content–position term q·Ŵr_δ; None adds it if the encoding has features r_δ.
        project_position: Whether Ŵ is learned per head; without it r_δ is used as is and must be key_width wide.
        content_bias: Whether there is a bias u of its own.
        query_bias: Whether W_q has a bias, which then acts as both u and a position bias (as in the paper's
            networks).
        key_bias: Whether W_k has a bias; the softmax cancels it, but some networks have it.

    Example:
        >>> from convattn import RelativeAttention2d
        >>> content = Content(key_width=4, content_bias=False)
        >>> RelativeAttention2d(8, 8, num_heads=2, encoding="quadratic", content=content)(torch.zeros(1, 8, 5, 5)).shape
        torch.Size([1, 8, 5, 5])
    """

    key_width: int | None = None
    position: bool | None = None
    project_position: bool = True
    content_bias: bool = True
    query_bias: bool = False
    key_bias: bool = False

    def __post_init__(self) -> None:
        """Checks the width; raises ArgumentError."""
        if self.key_width is not None:
            object.__setattr__(self, "key_width", whole_number("content.key_width", self.key_width))


@final
class ContentScores(nn.Module):
    """Scores from queries and keys: content–content, content–position and content bias."""

    def __init__(
        self, content: Content, in_channels: int, num_heads: int, feature_width: int
    ) -> None:
        """Draws the maps; `feature_width` is that of the encoding's features r_δ, 0 if it has none."""
        super().__init__()
        width = content.key_width
        if width is None:
            width = max(1, in_channels // num_heads)
        self.num_heads, self.key_width = num_heads, width
        self.uses_position = content.position is not False and feature_width > 0
        if content.position and not feature_width:
            raise ArgumentError(
                must_be("content.position", "None or False with an encoding without features", True)
            )
        if self.uses_position and not content.project_position and feature_width != width:
            expected = f"the encoding's feature width {feature_width} without project_position"
            raise ArgumentError(must_be("content.key_width", expected, width))
        self.query = nn.Linear(in_channels, num_heads * width, bias=content.query_bias)
        self.key = nn.Linear(in_channels, num_heads * width, bias=content.key_bias)
        self.position = None  # Ŵ, (heads, key_width, feature_width), or None
        if self.uses_position and content.project_position:
            scale = feature_width**-0.5
            self.position = nn.Parameter(torch.randn(num_heads, width, feature_width) * scale)
        self.content_bias = None  # u, (heads, key_width), or None
        if content.content_bias:
            self.content_bias = nn.Parameter(torch.zeros(num_heads, width))

    def forward(
        self, keys: Float[Tensor, "images channels *keys"], axes: Sequence[Axis], encoding: Encoding
    ) -> Float[Tensor, "images heads queries_flat keys_flat"]:
        """Scores every query and key of every image in at least float32, without the encoding's own score."""
        query = self._heads(self.query, query_pixels(keys, axes))
        key = self._heads(self.key, keys)
        with without_autocast(keys.device):
            position = None
            if self.uses_position:
                wide = query.to(torch.promote_types(query.dtype, torch.float32))
                _, (table,) = self._tables(axes, encoding, wide, by_axis=False, adds_score=False)
                position = table[:, displacement_places(axes, torch.arange(query.shape[2]))]
            return content_scores(query, key, position, self.content_bias)

    def attend(
        self,
        keys: Float[Tensor, "images channels *keys"],
        axes: Sequence[Axis],
        encoding: Encoding,
        value: Float[Tensor, "images heads_or_one keys inner"],
        *,
        form: str,
        precision: Precision,
        adds_score: bool,
        dropout: float,
    ) -> Float[Tensor, "images heads queries inner"]:
        """Takes the means of values in little memory.

        Args:
            keys: Key images.
            axes: Queries and keys along each axis.
            encoding: Displacement → score per head.
            value: Values.
            form: How scores of displacements reach the kernel: "one-hot", "quadratic" or "mask".
            precision: Dtype of the kernel's queries, keys and values.
            adds_score: Whether the encoding's own score is added.
            dropout: Probability of dropping a weight.

        Returns:
            The means, in that dtype.
        """
        compute_parameters(self)
        query = self._heads(self.query, query_pixels(keys, axes))
        key = self._heads(self.key, keys)
        narrow, mask = precision.dtype, None
        with without_autocast(keys.device):
            wide = torch.promote_types(narrow, torch.float32)
            scale = self.key_width**-0.5
            unbiased = query.to(wide) * scale
            # narrow queries are scaled by the kernel, or they would be rounded once more
            factor = 1.0
            if narrow == wide:
                query = unbiased
            else:
                factor = scale
            bias = None
            if self.content_bias is not None:
                bias = scale * self.content_bias.to(wide)
                query = query + (bias / factor)[:, None]
            query, key = query.to(narrow), key.to(narrow)
            if form == "mask":
                mask = self._mask(axes, encoding, unbiased, bias, adds_score=adds_score)
            elif adds_score or self.uses_position:
                channels = self._channels(form, axes, encoding, unbiased, adds_score=adds_score)
                channels = Channels(channels.query / factor, channels.key)
                if narrow != wide:
                    channels = in_parts(channels, narrow, precision.query, precision.key)
                query, key = channels.append(query, key)
            return fused_attention(query, key, value.to(narrow), mask, dropout, scale=factor)

    def _mask(
        self,
        axes: Sequence[Axis],
        encoding: Encoding,
        query: Tensor,
        bias: Float[Tensor, "heads width"] | None,
        *,
        adds_score: bool,
    ) -> Mask | None:
        """Returns what adds scores of displacements to those of content; None if there are none."""
        if not (adds_score or self.uses_position):
            return None
        by_axis = encoding.axis_additive and not is_accelerator(query.device)
        scores, features = self._tables(
            axes, encoding, query, by_axis=by_axis, adds_score=adds_score
        )
        if bias is not None and features:
            scores = _for_biased(bias, scores, features)
        return displacement_mask(axes, scores, features)

    def _channels(
        self,
        form: str,
        axes: Sequence[Axis],
        encoding: Encoding,
        query: Tensor,
        *,
        adds_score: bool,
    ) -> Channels:
        """Returns scores of displacements as channels, of queries without their bias."""
        if form == "quadratic":
            return self._second_degree(axes, encoding, query, adds_score=adds_score)
        scores, features = self._tables(axes, encoding, query, by_axis=True, adds_score=adds_score)
        own = query.new_zeros(())
        if scores:
            own = score_channels(scores, axes)
        if features:
            own = own + feature_channels(query, features, axes)
        return Channels(own, one_hot(axes, query.dtype, query.device))

    def _tables(
        self,
        axes: Sequence[Axis],
        encoding: Encoding,
        like: Tensor,
        *,
        by_axis: bool,
        adds_score: bool,
    ) -> tuple[list[Float[Tensor, "heads _"]], list[Float[Tensor, "heads_or_one _ width"]]]:
        """Returns scores and Ŵr_δ of displacements, one table for each axis or one of all; none of terms left out."""
        dtype, device = like.dtype, like.device
        scores, features = [], []
        if by_axis:
            assert isinstance(encoding, AxisAdditiveEncoding)
            if adds_score:
                scores = encoding.axis_tables(axes, dtype, device)
            if self.uses_position:
                features = encoding.axis_features(axes, dtype, device)
        else:
            if adds_score:
                scores = [encoding.table(axes, dtype, device).flatten(1)]
            if self.uses_position:
                features = [encoding.grid_features(axes, dtype, device)]
        if self.position is None:
            return scores, [table[None] for table in features]
        # torch.matmul would sum in another order without gradients
        pattern = "heads width features, displacements features -> heads displacements width"
        matrices = self.position.to(dtype)
        return scores, [einsum(matrices, table, pattern) for table in features]

    def _second_degree(
        self, axes: Sequence[Axis], encoding: Encoding, query: Tensor, *, adds_score: bool
    ) -> Channels:
        """Returns n + 1 channels of quadratic scores."""
        encoding.require_axes(axes)
        square = linear = query.new_zeros(())
        if adds_score:
            assert isinstance(encoding, Quadratic)
            square, linear = second_degree(encoding, query.dtype, query.device)
            square, linear = square[:, None], linear[:, None]
        if self.uses_position:
            seen = query
            if self.position is not None:
                seen = query @ self.position.to(query.dtype)
            square, linear = square + seen[..., 0], linear + seen[..., 1:]
        own = second_degree_query(square, linear, axes)
        return Channels(own, second_degree_key(axes, query))

    def rounding(
        self, encoding: Quadratic, axes: Sequence[Axis], dtype: torch.dtype, *, adds_score: bool
    ) -> float:
        """Bounds the attention that rounding moves in n + 1 channels, for images of absolute value ≤ 1."""
        square, linear = second_degree(encoding, torch.float64)
        square, linear = adds_score * square.abs(), adds_score * linear.abs()
        if self.uses_position:
            largest = self.query.weight.double().abs().sum(-1)
            if self.query.bias is not None:
                largest = largest + self.query.bias.double().abs()
            largest = largest.view(self.num_heads, -1, 1) * self.key_width**-0.5
            if self.position is not None:
                largest = self.position.double().abs().mT @ largest
            square, linear = square + largest[:, 0, 0], linear + largest[:, 1:, 0]
        return second_degree_error(square, linear, axes, dtype, self.key_width)

    def _heads(
        self, linear: nn.Linear, pixels: Tensor
    ) -> Float[Tensor, "images heads pixels width"]:
        flat = rearrange(pixels, "images channels ... -> images (...) channels")
        return rearrange(
            linear(flat),
            "images pixels (heads width) -> images heads pixels width",
            heads=self.num_heads,
        )


def _for_biased(
    bias: Float[Tensor, "heads width"],
    scores: Sequence[Float[Tensor, "heads _"]],
    features: Sequence[Float[Tensor, "heads_or_one _ width"]],
) -> list[Float[Tensor, "heads _"]]:
    """Returns s_h(δ) − u·Ŵr_δ: with the features, a query that holds u then scores as one that does not."""
    seen = [(table @ bias[..., None]).squeeze(-1) for table in features]
    if not scores:
        return [-own for own in seen]
    return [table - own for table, own in zip(scores, seen, strict=True)]
