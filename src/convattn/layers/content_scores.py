"""Which terms of the score depend on the input, and the parameters of these."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from convattn.errors import ArgumentError, must_be
from convattn.grid import whole_number


@dataclass(frozen=True)
class Content:
    """Which content terms a layer's score has; `content=True` means `Content()` without a gate.

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
    """Parameters of the scores from queries and keys: content–content, content–position and content bias."""

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
        self.position: Tensor | None = None  # Ŵ, (heads, key_width, feature_width), or None
        if self.uses_position and content.project_position:
            scale = feature_width**-0.5
            self.position = nn.Parameter(torch.randn(num_heads, width, feature_width) * scale)
        self.content_bias: Tensor | None = None  # u, (heads, key_width), or None
        if content.content_bias:
            self.content_bias = nn.Parameter(torch.zeros(num_heads, width))
