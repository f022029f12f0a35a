"""Gated attention: each head mixes a content distribution and a position distribution."""

from typing import Any, final

import torch
from torch import nn

from convattn.encodings import Encoding
from convattn.errors import ArgumentError, must_be
from convattn.layers.content import Content
from convattn.layers.relative import RelativeAttention

__all__ = ["GatedRelativeAttention2d"]


@final
class GatedRelativeAttention2d(RelativeAttention):
    """Heads that choose between what and where: A_h = (1 − σ(λ_h)) softmax(content) + σ(λ_h) softmax(position).

    Adding the two scores lets the larger one drown the other; mixing the two distributions does not. λ starts at 1,
    a share of 0.73 for position.

    Source: d'Ascoli et al. 2021 (ConViT), eq. 6; `docs/theory.md` §6.

    Attributes:
        gate: λ, (heads,); see also the attributes of `RelativeAttention`.

    Example:
        >>> layer = GatedRelativeAttention2d(4, 6, 9, "quadratic", padding=1)
        >>> layer(torch.zeros(2, 4, 5, 7)).shape
        torch.Size([2, 6, 7, 9])
    """

    dims = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_heads: int,
        encoding: str | Encoding,
        *,
        content: Content = Content(position=False, content_bias=False),  # noqa: B008 - frozen
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        """Builds the layer.

        Args:
            in_channels: D_in ≥ 1.
            out_channels: D_out ≥ 1.
            num_heads: N_h ≥ 1.
            encoding: Name of an encoding, or one for as many heads and two axes.
            content: Terms of the content distribution; by default content–content alone.
            device: Where to put the parameters.
            dtype: Dtype of the parameters.
            **options: Further arguments of `RelativeAttention`.

        Raises:
            ArgumentError: The content is not a `Content`, or FlexAttention is demanded, which has no gate; or as in
                `RelativeAttention`.
        """
        if not isinstance(content, Content):
            raise ArgumentError(must_be("content", "a Content, because the gate mixes it with position", content))
        if options.get("impl") == "flex":
            raise ArgumentError(must_be("impl", '"auto", "content" or "reference" with a gate', "flex"))
        super().__init__(in_channels, out_channels, num_heads, encoding, content=content, **options)
        self.gate = nn.Parameter(torch.ones(num_heads))
        self.to(device=device, dtype=dtype)
