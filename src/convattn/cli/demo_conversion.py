"""First part of the demo: a convolution of a photograph, and the attention that computes the same."""

from pathlib import Path
from typing import TYPE_CHECKING

from convattn.cli.demo_record import Conversion
from convattn.records import Certificate

if TYPE_CHECKING:
    from torch import Tensor, nn

    from convattn.layers import RelativeAttention

SOFT_SHARPNESS = 3.0

_FILTERS = {
    "vertical edges": [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]],
    "horizontal edges": [[-1, -2, -1], [0, 0, 0], [1, 2, 1]],
    "Laplacian": [[0, 1, 0], [1, -4, 1], [0, 1, 0]],
    "blur": [[1 / 16, 2 / 16, 1 / 16], [2 / 16, 4 / 16, 2 / 16], [1 / 16, 2 / 16, 1 / 16]],
}
"""Sobel's two operators, the Laplacian and the binomial blur."""

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the grey value (ITU-R BT.601)."""


def filter_bank() -> "nn.Conv2d":
    """Builds a 3×3 convolution of colour images with four outputs: two edge detectors, the Laplacian and a blur.

    It repeats the border's pixels and so keeps the image's size.
    """
    import torch
    from torch import nn

    conv = nn.Conv2d(3, len(_FILTERS), kernel_size=3, padding=1, padding_mode="replicate", bias=False)
    kernels = torch.tensor(list(_FILTERS.values()))
    with torch.no_grad():
        conv.weight.copy_(torch.einsum("okl,c->ockl", kernels, torch.tensor(_LUMA)))
    return conv


def show_conversions(folder: Path) -> list[Conversion]:
    """Converts the filters with hard heads, then with soft ones, saves the layers and draws both on a photograph."""
    from convattn.convert import conv_to_attention, save_layer
    from convattn.data import load_photograph

    pixels = load_photograph("china").pixels.float()[None] / 255
    conv = filter_bank()
    save_layer(conv, folder / "convolution")
    attention, certificate = conv_to_attention(conv)
    save_layer(attention, folder / "attention", certificate=certificate)
    soft, promise = conv_to_attention(conv, sharpness=SOFT_SHARPNESS)
    return [
        _show_conversion(folder / "hard-heads.png", pixels, conv, attention, certificate),
        _show_conversion(folder / "soft-heads.png", pixels, conv, soft, promise),
    ]


def _show_conversion(
    path: Path, pixels: "Tensor", conv: "nn.Conv2d", layer: "RelativeAttention", certificate: Certificate
) -> Conversion:
    """Runs both on the photograph, measures their difference and draws it."""
    import copy

    import torch
    from einops import rearrange, reduce

    from convattn.analysis import Comparison, convolution_and_attention

    softmax = copy.deepcopy(layer)
    softmax.impl = "separable"  # hard heads would run as the convolution that they are compared with
    with torch.inference_mode():
        made, low = softmax(pixels), conv(pixels)
        high = copy.deepcopy(conv).double()(pixels.double())
    unit = torch.finfo(low.dtype).eps * high.abs().max().item()
    comparison = Comparison(
        photograph=rearrange(pixels[0], "channels rows cols -> rows cols channels").numpy(),
        names=tuple(_FILTERS),
        kernels=reduce(conv.weight.detach(), "outputs channels rows cols -> outputs rows cols", "sum").numpy(),
        convolution=high[0].numpy(),
        attention=made[0].numpy(),
        heads=layer.attention((7, 7))[:, 3, 3].detach().numpy(),
        sharpness=certificate.sharpness,
        unit=unit,
    )
    convolution_and_attention(path, comparison)
    difference, exact, rounding = (
        (a.double() - b).abs().max().item() for a, b in ((made, low), (made, high), (low, high))
    )
    return Conversion(certificate, difference, exact, rounding, unit, path.name)
