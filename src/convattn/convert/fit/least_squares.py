"""Fits a convolution to given outputs by ridge regression, with normal equations in float64."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.convert.certificate.trial import tap_pixels
from convattn.convert.classes import Convolution
from convattn.convert.taps import read_taps


def unknowns(conv: Convolution) -> int:
    """Returns how many numbers are fitted at once: the weights of one output channel and its bias."""
    return conv.weight[0].numel() + (conv.bias is not None)


class NormalEquations:
    """The sums XᵀX and XᵀR of a convolution over batches, where X are its patches and R the errors of its outputs."""

    def __init__(self, conv: Convolution) -> None:
        """Starts with sums of zero; only `solve` changes the convolution."""
        self.conv, size = conv, unknowns(conv)
        weight = conv.weight
        zeros = torch.zeros(conv.groups, size, size, dtype=torch.float64, device=weight.device)
        self._squares, self._products = zeros, zeros.new_zeros(conv.groups, size, conv.out_channels // conv.groups)

    def add(self, x: Float[Tensor, "batch channels *spatial"], errors: Float[Tensor, "batch outputs *out"]) -> None:
        """Adds a batch of inputs, and the target outputs minus the convolution's, in float64."""
        groups = self.conv.groups
        features = _patches(self.conv, x.double())
        wanted = rearrange(errors, "batch (groups out) ... -> groups (batch ...) out", groups=groups)
        self._squares += features.mT @ features
        self._products += features.mT @ wanted

    def solve(self, ridge: float) -> None:
        """Moves weights and bias to the minimum of ‖R − X ΔW‖² + μ‖ΔW‖², μ = ridge · trace(XᵀX) / unknowns."""
        conv, squares = self.conv, self._squares
        mean = squares.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=torch.finfo(torch.float64).tiny)
        eye = torch.eye(squares.shape[-1], dtype=squares.dtype, device=squares.device)
        factor = torch.linalg.cholesky(squares + (ridge * mean)[:, None, None] * eye)
        change = rearrange(torch.cholesky_solve(self._products, factor), "groups unknowns out -> (groups out) unknowns")
        with torch.no_grad():
            if conv.bias is not None:
                conv.bias.copy_(conv.bias.double() + change[:, -1])
                change = change[:, :-1]
            conv.weight.copy_(conv.weight.double() + change.reshape(conv.weight.shape))


def _patches(conv: Convolution, x: Tensor) -> Float[Tensor, "groups pixels unknowns"]:
    """Lists the input numbers that each output pixel depends on, by channel and tap, and a one for the bias."""
    seen = torch.stack(list(tap_pixels(read_taps(conv), x)), dim=2)
    features = rearrange(
        seen.flatten(3), "batch (groups i) taps pixels -> groups (batch pixels) (i taps)", groups=conv.groups
    )
    if conv.bias is None:
        return features
    return torch.cat([features, features.new_ones(*features.shape[:2], 1)], dim=-1)
