"""Linear distance: attention falls off exponentially with the distance to a centre."""

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings.encoding import (
    AxisAdditiveEncoding,
    per_head,
    read_numbers,
    require_positive,
    write_parameter,
)
from convattn.encodings.quadratic import Centres, round_shapes, starting_centres


@final
class LinearDistance(AxisAdditiveEncoding):
    """Score −m_h‖δ − Δ_h‖₁ with slope m_h = exp(log_slope_h) > 0.

    Source: Press et al. 2022 (ALiBi), with a centre per head and on any number of axes.

    Attributes:
        centres: Δ, (heads, dims), in pixels.
        log_slope: log m, (heads,); m starts at ALiBi's 2^(−8(h + 1)/heads), in 1/pixel.

    Example:
        >>> LinearDistance(8, 1).slope[0].item()
        0.5
    """

    centre_argument = "centres"
    width_parameter = "log_slope"

    def __init__(self, num_heads: int, dims: int, *, centres: Centres = None) -> None:
        """Builds the encoding.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            centres: Δ in pixels, (heads, dims), or (dims,) for all heads; None draws them from N(0, 2²).

        Raises:
            ArgumentError: A size is out of range, or a centre is not finite; ShapeError if the centres are
                of another shape.
        """
        super().__init__(num_heads, dims)
        self.centres = nn.Parameter(starting_centres(num_heads, dims, centres))
        ranks = torch.arange(1, num_heads + 1) / num_heads
        self.log_slope = nn.Parameter(-8 * ranks * torch.tensor(2.0).log())

    @property
    def slope(self) -> Float[Tensor, " heads"]:
        """Slope m per head, in 1/pixel. Assign a number, or one per head; writing into it has no effect."""
        return self.log_slope.exp()

    @slope.setter
    def slope(self, value: Any) -> None:
        logs = read_numbers("slope", value, (self.num_heads,)).log()
        dtype = self.log_slope.dtype
        require_positive("slope", logs.to(dtype).exp(), value)
        write_parameter(self, "log_slope", logs)

    @property
    def head_shapes(self) -> Float[Tensor, "heads dims dims"]:
        """m/√2 times the identity: along an axis attention e^{−m|δ|} has the variance 2/m²."""
        return round_shapes(self.slope / 2**0.5, self.dims)

    def axis_scores(self, displacement: Tensor) -> Tensor:
        """Scores displacements along each axis."""
        centre = per_head(self.centres, displacement)
        slope = per_head(self.log_slope, displacement).exp()
        return -slope * (displacement - centre).abs()
