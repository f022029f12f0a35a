"""The block that attention networks repeat: mix pixels, then work on each pixel alone."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ArgumentError, UnknownNameError
from convattn.grid import whole_number


@final
class MixingBlock(nn.Module):
    """Mixing of pixels and a feed-forward network on each pixel, with residual connections and layer normalisation.

    With M the mixer, D a linear map and F(x) = W₂ GELU(W₁ x), normalised after each sum ("post", the paper's) or before
    each branch ("pre")::

        post:  x ← LN(x + drop(D M(x))),   x ← LN(x + drop(F(x)))
        pre:   x ← x + drop(D M(LN x)),    x ← x + drop(F(LN x))

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, appendix on the experiments; the block is BERT's (Devlin et al. 2019).
    """

    def __init__(
        self,
        mixer: nn.Module,
        width: int,
        *,
        ffn: int,
        dense: bool = True,
        norm: str = "post",
        dropout: float = 0.1,
        eps: float = 1e-12,
    ) -> None:
        """Builds the block around a mixer, which takes and returns (batch, width, *spatial)."""
        # `ffn` is the width of the hidden layer, and `dense` tells whether D follows the mixer.
        super().__init__()
        for name, size in (("width", width), ("ffn", ffn)):
            whole_number(name, size)
        if not 0 <= dropout < 1:
            raise ArgumentError(f"dropout must be a probability in [0, 1), but is {dropout}")
        if norm not in {"post", "pre"}:
            raise UnknownNameError("norm", norm, ("post", "pre"))
        self.norm = norm
        self.mixer = mixer
        self.dense = nn.Linear(width, width) if dense else nn.Identity()  # D
        self.mixer_norm = nn.LayerNorm(width, eps=eps)
        self.expand = nn.Linear(width, ffn)  # W₁
        self.contract = nn.Linear(ffn, width)  # W₂
        self.feedforward_norm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch channels *spatial"]
    ) -> Float[Tensor, "batch channels *spatial"]:
        """Mixes the pixels of feature maps, then transforms each pixel."""
        pixels = x.movedim(1, -1)
        if self.norm == "post":
            pixels = self.mixer_norm(pixels + self._mix(x))
            pixels = self.feedforward_norm(pixels + self._feed_forward(pixels))
        else:
            pixels = pixels + self._mix(self.mixer_norm(pixels).movedim(-1, 1))
            pixels = pixels + self._feed_forward(self.feedforward_norm(pixels))
        return pixels.movedim(-1, 1)

    def _mix(
        self, x: Float[Tensor, "batch channels *spatial"]
    ) -> Float[Tensor, "batch *spatial channels"]:
        return self.dropout(self.dense(self.mixer(x).movedim(1, -1)))

    def _feed_forward(
        self, pixels: Float[Tensor, "*pixels channels"]
    ) -> Float[Tensor, "*pixels channels"]:
        return self.dropout(self.contract(nn.functional.gelu(self.expand(pixels))))
