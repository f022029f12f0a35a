"""Networks of diffusers, transformers and MONAI, converted on both paths, and two that no library has."""

from itertools import pairwise
from pathlib import Path

from torch import Tensor, nn

from evidence.sweep.listed import listed


class Coder(nn.Module):
    """Encoder and decoder of a codec without the code book between, which rounds."""

    def __init__(self, codec: nn.Module) -> None:
        """Takes the codec."""
        super().__init__()
        self.encoder, self.decoder = codec.encoder, codec.decoder

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the code and what is made of it."""
        encoded = self.encoder(x)
        code = encoded if isinstance(encoded, Tensor) else encoded[0]
        return code, self.decoder(code)


class Generator(nn.Sequential):
    """The generator of DCGAN (Radford, Metz, Chintala 2016): 100 numbers to an image of 64 × 64."""

    def __init__(self, width: int = 64) -> None:
        """Builds the generator.

        Args:
            width: Channels before the last layer, ≥ 1.
        """
        widths = [100, 8 * width, 4 * width, 2 * width, width]
        layers: list[nn.Module] = []
        for step, (inputs, outputs) in enumerate(pairwise(widths)):
            spread = {"stride": 2, "padding": 1} if step else {}
            layers.append(nn.ConvTranspose2d(inputs, outputs, 4, **spread, bias=False))
            layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        super().__init__(
            *layers, nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1, bias=False), nn.Tanh()
        )


HOME = listed("others", Path(__file__).with_suffix(".json"), ways=("auto", "separable"))
"""Chosen networks of other libraries."""
