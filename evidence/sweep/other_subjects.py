"""Networks of other homes: diffusers, transformers, MONAI, and a generator of its own, with random weights."""

import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evidence.sweep.subjects import Built, Home, Subject


def _noise(*shape: int) -> Tensor:
    """Draws a standard normal tensor, the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _unet() -> Built:
    """The denoiser of DDPM on CIFAR-10 (google/ddpm-cifar10-32): convolutions, attention, steps of time."""
    from diffusers import UNet2DModel

    blocks = ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D")
    network = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        block_out_channels=(128, 256, 256, 256),
        layers_per_block=2,
        attention_head_dim=None,
        down_block_types=blocks,
        up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        downsample_padding=0,
        flip_sin_to_cos=False,
        freq_shift=1,
    )
    return Built(network, {"sample": _noise(1, 3, 32, 32), "timestep": 10})


def _conditional_unet() -> Built:
    """The U-Net of Stable Diffusion, narrow: cross-attention on words."""
    from diffusers import UNet2DConditionModel

    network = UNet2DConditionModel(
        sample_size=32, block_out_channels=(64, 128, 128, 128), cross_attention_dim=64
    )
    sample, words = _noise(1, 4, 32, 32), _noise(1, 7, 64)
    return Built(network, {"sample": sample, "timestep": 10, "encoder_hidden_states": words})


def _video_unet() -> Built:
    """The 3-D U-Net of text-to-video diffusion, narrow."""
    from diffusers import UNet3DConditionModel

    network = UNet3DConditionModel(
        block_out_channels=(32, 64, 64, 64), cross_attention_dim=64, attention_head_dim=16
    )
    sample, words = _noise(1, 4, 5, 32, 32), _noise(1, 7, 64)
    return Built(network, {"sample": sample, "timestep": 10, "encoder_hidden_states": words})


def _autoencoder() -> Built:
    """The autoencoder of Stable Diffusion, narrow."""
    from diffusers import AutoencoderKL

    kinds = 4
    network = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * kinds,
        up_block_types=("UpDecoderBlock2D",) * kinds,
        block_out_channels=(32, 64, 128, 128),
        layers_per_block=2,
    )
    return Built(network, {"sample": _noise(1, 3, 64, 64)})


def _wav2vec2() -> Built:
    """wav2vec 2.0, base: seven 1-D convolutions and a grouped one of 128 taps with a normalised weight."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    return Built(Wav2Vec2Model(Wav2Vec2Config()), {"input_values": _noise(1, 8000)})


def _whisper() -> Built:
    """The encoder of Whisper, tiny: two 1-D convolutions, and 30 seconds."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536
    )
    return Built(WhisperEncoder(config), {"input_features": _noise(1, 80, 3000)})


def _encodec() -> Built:
    """EnCodec at 24 kHz: causal 1-D convolutions with normalised weights, there and back."""
    from transformers import EncodecConfig, EncodecModel

    network = EncodecModel(EncodecConfig())
    return Built(_Coder(network), (_noise(1, 1, 2400),))


class _Coder(nn.Module):
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


def _dac() -> Built:
    """The Descript audio codec at 16 kHz: strided and transposed 1-D convolutions."""
    from transformers import DacConfig, DacModel

    return Built(_Coder(DacModel(DacConfig(decoder_hidden_size=512))), (_noise(1, 1, 4000),))


def _mimi() -> Built:
    """The convolutions of Mimi, causal, there and back."""
    from transformers import MimiConfig, MimiModel

    return Built(_Coder(MimiModel(MimiConfig())), (_noise(1, 1, 3840),))


def _vocoder() -> Built:
    """The generator of HiFi-GAN: transposed 1-D convolutions with normalised weights."""
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    return Built(SpeechT5HifiGan(SpeechT5HifiGanConfig()), (_noise(1, 10, 80),))


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


def _generator() -> Built:
    return Built(Generator(), (_noise(2, 100, 1, 1),))


NETWORKS: dict[str, Callable[[], Built]] = {
    "dcgan (generator)": _generator,
    "diffusers.AutoencoderKL": _autoencoder,
    "diffusers.UNet2DConditionModel": _conditional_unet,
    "diffusers.UNet2DModel": _unet,
    "diffusers.UNet3DConditionModel": _video_unet,
    "transformers.DacModel": _dac,
    "transformers.EncodecModel": _encodec,
    "transformers.MimiModel": _mimi,
    "transformers.SpeechT5HifiGan": _vocoder,
    "transformers.Wav2Vec2Model": _wav2vec2,
    "transformers.WhisperEncoder": _whisper,
}
"""What builds each network, by name."""

OF_IMAGES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("other_networks.json").read_text(encoding="utf-8")
)
"""Networks that take one image: class, configuration if it has one, the shape and options, by name."""


def _of_image(family: str) -> Built:
    """Builds a network of transformers or MONAI that takes one image."""
    row = OF_IMAGES[family]
    image = _noise(*row["shape"])
    if "config" in row:
        transformers = import_module("transformers")
        config = getattr(transformers, row["config"])(**row["options"])
        return Built(getattr(transformers, row["network"])(config), {"pixel_values": image})
    network = getattr(import_module("monai.networks.nets"), row["network"])
    return Built(network(**row["options"]), (image,))


def _families() -> list[str]:
    """Lists the names of all networks."""
    return sorted([*NETWORKS, *OF_IMAGES])


def _subject(family: str) -> Subject:
    """Looks a network up."""
    return Subject(family, NETWORKS.get(family) or partial(_of_image, family))


HOME = Home("others", ("diffusers", "transformers", "monai"), _families, _subject)
"""diffusers, transformers, MONAI, and a generator of images that comes without a library."""
