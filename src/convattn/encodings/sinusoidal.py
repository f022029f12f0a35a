"""Sinusoidal encoding: fixed waves along each axis, weighted by each head."""

import math
from typing import Any, final

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings.encoding import AxisAdditiveEncoding, place_along_axis
from convattn.errors import require
from convattn.grid import whole_number


@final
class Sinusoidal(AxisAdditiveEncoding):
    """Score Σ_a v_h,a · (sin ωδ_a, cos ωδ_a)_ω with fixed ω_i = max_period^(−i/F), i = 0, …, F − 1.

    Source: Dai et al. 2019 (Transformer-XL), §3.3, along each axis, with the frequencies of Vaswani et al. 2017.

    Attributes:
        head_vectors: v, (dims, heads, 2·frequencies), sines first; drawn from N(0, 0.02²).

    Example:
        >>> Sinusoidal(4, 2, frequencies=8).feature_width
        32
    """

    def __init__(
        self, num_heads: int, dims: int, *, frequencies: int = 64, max_period: float = 10_000.0
    ) -> None:
        """Builds the encoding.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            frequencies: F ≥ 1, waves per axis.
            max_period: Ratio of the fastest to (nearly) the slowest frequency, > 1.

        Raises:
            ArgumentError: A value is out of range.
        """
        super().__init__(num_heads, dims)
        self.frequencies = whole_number("frequencies", frequencies)
        require(1 < max_period < math.inf, "max_period", "a finite number above 1", max_period)
        self.max_period = float(max_period)
        vectors = torch.randn(dims, num_heads, 2 * self.frequencies)
        self.head_vectors = nn.Parameter(0.02 * vectors)

    def options(self) -> dict[str, Any]:
        """Returns frequencies and max_period."""
        return {"frequencies": self.frequencies, "max_period": self.max_period}

    def _waves(self, displacement: Float[Tensor, "*points"]) -> Float[Tensor, "*points waves"]:
        steps = torch.arange(self.frequencies, dtype=displacement.dtype, device=displacement.device)
        frequency = self.max_period ** (-steps / self.frequencies)
        phase = displacement[..., None] * frequency
        return torch.cat([phase.sin(), phase.cos()], dim=-1)

    def axis_scores(self, displacement: Tensor) -> Tensor:
        """Scores displacements along each axis."""
        vectors = self.head_vectors.to(displacement.dtype)
        waves = self._waves(displacement)
        return einsum(vectors, waves, "dims heads waves, dims ... waves -> heads dims ...")

    def axis_feature_vectors(self, axis: int, displacement: Tensor) -> Tensor:
        """Returns the features of displacements along one axis."""
        return place_along_axis(self._waves(displacement), axis, self.dims)
