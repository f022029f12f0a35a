"""Generalised quadratic encoding: each head looks at an ellipse around a centre."""

from typing import Any, final

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings.encoding import Encoding, read_numbers, write_parameter
from convattn.encodings.quadratic import Centres, starting_centres
from convattn.errors import require


@final
class GeneralizedQuadratic(Encoding):
    """Score −½(δ − Δ_h)ᵀ Σ_h⁻¹ (δ − Δ_h) with Σ_h⁻¹ = S_hᵀ S_h: attention is a Gaussian of covariance Σ_h around Δ_h.

    The factor S keeps Σ⁻¹ positive semi-definite; a head whose S loses rank attends to a whole line, or to everything.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, §4.2 and appendix; features are the monomials (δ_iδ_j for i ≤ j, δ_i).

    Attributes:
        centres: Δ, (heads, dims), in pixels.
        shape: S, (heads, dims, dims), in 1/pixel; starts at the identity plus N(0, 0.01²).

    Example:
        >>> encoding = GeneralizedQuadratic(3, 2)
        >>> encoding(encoding.centres.detach()).diagonal().abs().max().item()
        0.0
    """

    centre_argument = "centres"
    width_parameter = "shape"

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
        noise = torch.randn(num_heads, dims, dims)
        self.shape = nn.Parameter(torch.eye(dims) + 0.01 * noise)

    @property
    def precision(self) -> Float[Tensor, "heads dims dims"]:
        """Σ⁻¹ = SᵀS per head, in 1/pixel². Assign positive definite matrices; writing into it has no effect."""
        return self.shape.mT @ self.shape

    @precision.setter
    def precision(self, value: Any) -> None:
        dtype = self.shape.dtype
        matrices = read_numbers("precision", value, tuple(self.shape.shape))
        largest = matrices.abs().amax((-2, -1), keepdim=True)
        rounding = self.dims * torch.finfo(dtype).eps * largest
        symmetric = (matrices - matrices.mT).abs() <= rounding
        factors, failed = torch.linalg.cholesky_ex((matrices + matrices.mT) / 2)
        shape = factors.mT.to(dtype)
        rounded = shape.mT @ shape  # as it will be read
        positive = rounded.diagonal(dim1=-2, dim2=-1) > 0
        definite = positive.all() and rounded.isfinite().all() and not failed.any()
        expected = f"symmetric and positive definite in {dtype}"
        require(definite and symmetric.all(), "precision", expected, value)
        write_parameter(self, "shape", shape)

    @property
    def head_shapes(self) -> Float[Tensor, "heads dims dims"]:
        """S."""
        return self.shape

    def score(self, displacement: Tensor) -> Tensor:
        """Scores displacements."""
        ones = [1] * (displacement.ndim - 1)
        centres = self.centres.view(self.num_heads, *ones, self.dims)
        offset = displacement - centres.to(displacement.dtype)
        shape = self.shape.to(displacement.dtype)
        scaled = einsum(shape, offset, "heads rows dims, heads ... dims -> heads ... rows")
        return -(scaled**2).sum(-1) / 2

    def feature_vectors(self, displacement: Tensor) -> Tensor:
        """Returns the features of displacements."""
        first, second = torch.triu_indices(self.dims, self.dims, device=displacement.device)
        products = displacement[..., first] * displacement[..., second]
        return torch.cat([products, displacement], dim=-1)
