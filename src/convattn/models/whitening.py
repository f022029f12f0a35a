"""Patches of an image as pixels, in the directions in which they vary."""

from typing import final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

_SIDE = 2
_LEAST = 5e-4
"""Added to each variance, so that directions in which patches hardly vary are not blown up."""
_AT_ONCE = 500
"""Images whose patches are made at once."""


@final
class WhitenedPatches(nn.Module):
    """Overlapping 2 x 2 patches, each mapped to its whitened coordinates and their negatives: y = [V; −V] p + b.

    Row i of V is e_i / √(λ_i + 5·10⁻⁴), with e_i and λ_i the eigenvectors and eigenvalues of E[p pᵀ]. V is no
    parameter: `whiten` takes it from images. Until then it is the identity. b starts uniform as that of `nn.Linear`.

    Source: Page, "How to train your ResNet 8: bag of tricks", 2019; with negatives and frozen: Jordan, arXiv
    2404.00498, §3.2.
    """

    weight: Tensor  # [V; −V], (8·channels, 4·channels), a buffer

    def __init__(self, channels: int) -> None:
        super().__init__()
        inputs = channels * _SIDE**2
        self.register_buffer("weight", torch.cat([torch.eye(inputs), -torch.eye(inputs)]))
        self.bias = nn.Parameter(torch.empty(2 * inputs).uniform_(-(inputs**-0.5), inputs**-0.5))

    def forward(
        self, images: Float[Tensor, "batch channels rows cols"]
    ) -> Float[Tensor, "batch outputs fewer_rows fewer_cols"]:
        """Maps every patch; there is one row and one column of patches less than of pixels."""
        mapped = F.linear(_patches(images), self.weight, self.bias)
        return rearrange(mapped, "batch rows cols outputs -> batch outputs rows cols")

    @torch.no_grad()
    def whiten(self, images: Float[Tensor, "batch channels rows cols"]) -> None:
        """Takes V from the patches of normalised images, in float64."""
        products = torch.zeros(self.weight.shape[1], self.weight.shape[1], dtype=torch.float64, device=images.device)
        count = 0
        for part in images.split(_AT_ONCE):
            patches = rearrange(_patches(part).double(), "batch rows cols inputs -> (batch rows cols) inputs")
            products += patches.T @ patches
            count += len(patches)
        variances, directions = torch.linalg.eigh(products / count)
        rows = (directions / (variances + _LEAST).sqrt()).T
        self.weight.copy_(torch.cat([rows, -rows]))


def _patches(images: Tensor) -> Float[Tensor, "batch rows cols inputs"]:
    """Cuts images into overlapping patches."""
    windows = images.unfold(2, _SIDE, 1).unfold(3, _SIDE, 1)
    return rearrange(windows, "batch channels rows cols down across -> batch rows cols (channels down across)")
