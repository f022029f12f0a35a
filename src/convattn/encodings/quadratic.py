"""Quadratic encoding: each head looks at a disc around a centre (paper, eq. 9)."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, TypeAlias, final

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
from convattn.errors import ArgumentError, must_be, require
from convattn.grid import Displacements

_FARTHEST = 1 << 20
"""Displacement in pixels beyond which float32 does not tell neighbouring pixels apart."""

Centres: TypeAlias = (
    Sequence[Sequence[float]] | Sequence[float] | Float[Tensor, "*heads dims"] | None
)
"""Where heads look, in pixels, each or all; None draws their centres."""


def starting_centres(num_heads: int, dims: int, centres: Centres) -> Float[Tensor, "heads dims"]:
    """Reads the given centres Δ, each head's or that of all, or draws them from N(0, 2²)."""
    if centres is None:
        return torch.randn(num_heads, dims) * 2
    numbers = read_numbers("centres", centres, (num_heads, dims))
    centres = torch.empty(num_heads, dims)
    kept = numbers.to(centres.dtype)
    require(kept.isfinite().all(), "centres", f"finite in {kept.dtype}", numbers.tolist())
    return centres.copy_(kept)


def grid_centres(num_heads: int) -> list[tuple[int, ...]]:
    """Lists the K × K shifts (row, column) around the query for K² heads, K odd: the taps of a kernel, row by row."""
    taps = kernel_taps(num_heads, 2)
    if taps is None:
        expected = "the square of an odd number for centres on a grid"
        raise ArgumentError(must_be("heads", expected, num_heads))
    return taps


def kernel_taps(num_heads: int, dims: int) -> list[tuple[int, ...]] | None:
    """Lists the displacements of a kernel's taps, row by row; None if no odd kernel has as many taps as heads."""
    side = round(max(num_heads, 0) ** (1 / dims))
    if side**dims != num_heads or side % 2 == 0:
        return None
    reach = side // 2
    return list(product(range(-reach, reach + 1), repeat=dims))


def as_displacements(numbers: Float[Tensor, "heads dims"]) -> Displacements:
    """Returns whole numbers of pixels, one displacement per head."""
    return tuple(tuple(map(int, head)) for head in numbers.tolist())


def round_shapes(roots: Float[Tensor, " heads"], dims: int) -> Float[Tensor, "heads dims dims"]:
    """Returns a number per head times the identity."""
    return roots[:, None, None] * torch.eye(dims, dtype=roots.dtype, device=roots.device)


def off_centre_mass(sharpness: float, dims: int) -> float:
    """Bounds the weight that a quadratic head centred on a pixel gives to all other pixels.

    `ε(α) = θ(e^{−α})ⁿ − 1` with `θ(x) = 1 + 2 Σ_{m≥1} x^{m²}`: the sum of e^{−α‖δ‖²} over the lattice without its
    centre, whose own weight before normalisation is 1. It also holds at borders, where there are fewer keys. For small
    α it is evaluated as `θ(e^{−α}) = √(π/α) θ(e^{−π²/α})`, and never reported above e^700.

    Source: `docs/explanation/theory.md` §3.

    Args:
        sharpness: α > 0, in 1/pixel².
        dims: Number of axes n ≥ 1.

    Returns:
        ε(α), a share of the attention; above 1 the bound says nothing.

    Raises:
        ArgumentError: α is not positive.

    Example:
        >>> round(off_centre_mass(5.0, dims=2), 4)
        0.0271
    """
    require(sharpness > 0, "sharpness", "above 0", sharpness)
    if sharpness >= math.pi:
        return math.expm1(dims * math.log1p(2 * _gaussian_tail(sharpness)))
    # Jacobi's identity: the sum over the dual lattice converges where this one is slow
    dual = 2 * _gaussian_tail(math.pi**2 / sharpness)
    exponent = dims * (math.log(math.pi / sharpness) / 2 + math.log1p(dual))
    return math.expm1(min(exponent, 700.0))


def _gaussian_tail(sharpness: float) -> float:
    """Sums e^{−αm²} over m ≥ 1, for α ≥ π; the tenth term is below 1e-136 of the first."""
    return math.fsum(math.exp(-sharpness * step * step) for step in range(1, 10))


class QuadraticFeatures(AxisAdditiveEncoding):
    """An encoding whose score −α‖δ − Δ‖² is linear in r_δ = (‖δ‖², δ₁, …, δ_n)."""

    def axis_feature_vectors(self, axis: int, displacement: Tensor) -> Tensor:
        """Returns the features of displacements along one axis."""
        features = displacement.new_zeros(*displacement.shape, self.dims + 1)
        features[..., 0] = displacement**2
        features[..., 1 + axis] = displacement
        return features


@final
class Quadratic(QuadraticFeatures):
    """Score −α_h‖δ − Δ_h‖²: attention is a Gaussian of variance 1/(2α_h) around the centre Δ_h.

    As α → ∞ a head attends to the one pixel at its centre, which makes it a tap of a convolution. The sharpness is
    stored as its root, α = ½·root², as in the authors' code, so that it stays positive.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, eq. 9; D_p = n + 1 features (‖δ‖², δ₁, …, δ_n).

    Attributes:
        centres: Δ, (heads, dims), in pixels.
        root_sharpness: √(2α), (heads,), in 1/pixel.

    Example:
        >>> encoding = Quadratic(1, 2, centres=[[0.0, 1.0]], sharpness=2.0)
        >>> encoding(torch.tensor([[0.0, 1.0], [1.0, 1.0]])).tolist()
        [[0.0, -2.0]]
    """

    centre_argument = "centres"
    width_parameter = "root_sharpness"

    def __init__(
        self,
        num_heads: int,
        dims: int,
        *,
        centres: Centres = None,
        sharpness: float | None = None,
    ) -> None:
        """Builds the encoding.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            centres: Δ in pixels, (heads, dims), or (dims,) for all heads; None draws them from N(0, 2²).
            sharpness: α > 0 in 1/pixel², for all heads; None draws √(2α) from N(1, 0.01²).

        Raises:
            ArgumentError: A size or the sharpness is out of range, or a centre is not finite; ShapeError if the
                centres are of another shape.
        """
        super().__init__(num_heads, dims)
        self.centres = nn.Parameter(starting_centres(num_heads, dims, centres))
        drawn = sharpness is None
        root = 1 + 0.01 * torch.randn(num_heads) if drawn else torch.empty(num_heads)
        self.root_sharpness = nn.Parameter(root)
        if not drawn:
            self.sharpness = sharpness

    @property
    def sharpness(self) -> Float[Tensor, " heads"]:
        """α = ½·root² per head, in 1/pixel². Assign a number, or one per head; writing into it has no effect."""
        return self.root_sharpness**2 / 2

    @sharpness.setter
    def sharpness(self, value: Any) -> None:
        dtype = self.root_sharpness.dtype
        roots = math.sqrt(2) * read_numbers("sharpness", value, (self.num_heads,)).sqrt()
        require_positive("sharpness", roots.to(dtype) ** 2 / 2, value)
        write_parameter(self, "root_sharpness", roots)

    def hard_displacements(self) -> tuple[Displacements, float] | None:
        """Returns the pixels nearest to the centres, and a bound on the attention elsewhere; None if they are too far.

        A head f ≤ ½ from a pixel along an axis gives its other pixels, at distances m on both sides, at most
        `Σ_{m≥1} e^{−α(m² − 2mf)} + e^{−α(m² + 2mf)}` of what that pixel has. Beyond the keys the nearest key takes its
        place, and the others are farther still. With m² ≥ 3m − 2 the sums are at most geometric ones.
        """
        centres = self.centres.detach().double().cpu()
        alpha = self.sharpness.detach().double().cpu()[:, None]
        nearest = centres.round()
        if not nearest.abs().max().item() <= _FARTHEST:
            return None
        away = (centres - nearest).abs()
        near = torch.exp(-alpha * (1 - 2 * away)) / -torch.expm1(-alpha * (3 - 2 * away))
        far = torch.exp(-alpha * (1 + 2 * away)) / -torch.expm1(-3 * alpha)
        return as_displacements(nearest), (near + far).sum(1).max().item()

    @property
    def head_shapes(self) -> Float[Tensor, "heads dims dims"]:
        """√(2α) times the identity."""
        return round_shapes(self.root_sharpness, self.dims)

    def axis_scores(self, displacement: Tensor) -> Tensor:
        """Scores displacements along each axis."""
        centre = per_head(self.centres, displacement)
        root = per_head(self.root_sharpness, displacement)
        scaled = root * (displacement - centre)
        return -0.5 * scaled.square()
