"""The block that attention networks repeat: mix pixels, then work on each pixel alone."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

_EPSILON = 1e-12
"""BERT's, in its layer normalisation."""


@final
class MixingBlock(nn.Module):
    """Mixing of pixels and a feed-forward network on each pixel, with residual connections and layer normalisation.

    With M the mixer, D a linear map and F(x) = W₂ GELU(W₁ x)::

        x ← LN(x + drop(D M(x))),   x ← LN(x + drop(F(x)))

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, appendix on the experiments; the block is BERT's (Devlin et al. 2019).
    """

    def __init__(
        self,
        mixer: nn.Module,
        width: int,
        *,
        ffn: int,
        dropout: float,
    ) -> None:
        """Builds the block around a mixer, which takes and returns (batch, width, *spatial)."""
        super().__init__()
        self.mixer = mixer
        self.dense = nn.Linear(width, width)  # D
        self.mixer_norm = nn.LayerNorm(width, eps=_EPSILON)
        self.expand = nn.Linear(width, ffn)  # W₁
        self.contract = nn.Linear(ffn, width)  # W₂
        self.feedforward_norm = nn.LayerNorm(width, eps=_EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch channels *spatial"]
    ) -> Float[Tensor, "batch channels *spatial"]:
        """Mixes the pixels of feature maps, then transforms each pixel."""
        mixed = self.dense(self.mixer(x).movedim(1, -1))
        pixels = self.mixer_norm(x.movedim(1, -1) + self.dropout(mixed))
        hidden = nn.functional.gelu(self.expand(pixels))
        transformed = self.contract(hidden)
        pixels = self.feedforward_norm(pixels + self.dropout(transformed))
        return pixels.movedim(-1, 1)
