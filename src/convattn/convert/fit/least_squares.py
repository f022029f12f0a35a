"""Fits a convolution or a linear map to given outputs by ridge regression, with normal equations in float64."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.certificate.trial import tap_pixels
from convattn.convert.classes import Convolution
from convattn.convert.taps import read_taps


def unknowns(layer: Convolution | nn.Linear) -> int:
    """Returns how many numbers are fitted at once: the weights of one output channel and its bias."""
    return layer.weight[0].numel() + (layer.bias is not None)


class NormalEquations:
    """The sums XᵀX and XᵀR of a layer over batches, where X are its inputs and R the errors of its outputs.

    The inputs of a convolution are its patches; a linear map takes and gives channels last.
    """

    def __init__(self, layer: Convolution | nn.Linear) -> None:
        """Starts with sums of zero; only `solve` changes the layer."""
        self.layer, size = layer, unknowns(layer)
        self._groups, weight = 1 if isinstance(layer, nn.Linear) else layer.groups, layer.weight
        zeros = torch.zeros(self._groups, size, size, dtype=torch.float64, device=weight.device)
        self._squares, self._products = zeros, zeros.new_zeros(self._groups, size, len(weight) // self._groups)

    def add(self, x: Float[Tensor, "batch *_"], errors: Float[Tensor, "batch *_"]) -> None:
        """Adds a batch of inputs, and the target outputs minus the layer's, in float64."""
        if isinstance(self.layer, nn.Linear):
            features, wanted = x.double().flatten(0, -2)[None], errors.flatten(0, -2)[None]
        else:
            features = _patches(self.layer, x.double())
            wanted = rearrange(errors, "batch (groups out) ... -> groups (batch ...) out", groups=self._groups)
        if self.layer.bias is not None:
            features = torch.cat([features, features.new_ones(*features.shape[:2], 1)], dim=-1)
        self._squares += features.mT @ features
        self._products += features.mT @ wanted

    @property
    def finite(self) -> bool:
        """Whether all sums are finite."""
        return bool(self._squares.isfinite().all() and self._products.isfinite().all())

    def solve(self, ridge: float) -> None:
        """Moves weights and bias to the minimum of ‖R − X ΔW‖² + μ‖ΔW‖², μ = ridge · trace(XᵀX) / unknowns."""
        layer, squares = self.layer, self._squares
        mean = squares.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=torch.finfo(torch.float64).tiny)
        eye = torch.eye(squares.shape[-1], dtype=squares.dtype, device=squares.device)
        factor = torch.linalg.cholesky(squares + (ridge * mean)[:, None, None] * eye)
        change = rearrange(torch.cholesky_solve(self._products, factor), "groups unknowns out -> (groups out) unknowns")
        with torch.no_grad():
            if layer.bias is not None:
                layer.bias.copy_(layer.bias.double() + change[:, -1])
                change = change[:, :-1]
            layer.weight.copy_(layer.weight.double() + change.reshape(layer.weight.shape))


def _patches(conv: Convolution, x: Tensor) -> Float[Tensor, "groups pixels weights"]:
    """Lists the input numbers that each output pixel depends on, by channel and tap."""
    seen = torch.stack(list(tap_pixels(read_taps(conv), x)), dim=2)
    return rearrange(
        seen.flatten(3), "batch (groups i) taps pixels -> groups (batch pixels) (i taps)", groups=conv.groups
    )
