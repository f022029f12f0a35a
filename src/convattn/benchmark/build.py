"""Layers, images and settings, made the same in every process from the data of a case."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.benchmark.cases import LayerCase
from convattn.convert import conv_to_attention
from convattn.errors import ArgumentError, DeviceError, UnknownNameError, must_be
from convattn.layers import RelativeAttention, RelativeAttention2d
from convattn.models import AttentionNet

__all__ = ["DTYPES", "Setting", "build_convolution", "build_layer", "draw_images", "path_taken", "seeded", "with_path"]

DTYPES = ("bfloat16", "float32", "float64")
"""Dtypes in which can be measured."""

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Setting:
    """Where and in what numbers is computed.

    Attributes:
        device: "cpu", "cuda" or "cuda:N".
        dtype: One of `DTYPES`.
    """

    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Checks the names.

        Raises:
            UnknownNameError: The dtype is not one of `DTYPES`.
            ArgumentError: The device is not the CPU or a CUDA device.
            DeviceError: There is no such CUDA device.
        """
        if self.dtype not in DTYPES:
            raise UnknownNameError("dtype", self.dtype, DTYPES)
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = None
        if device is None or device.type not in {"cpu", "cuda"}:
            raise ArgumentError(must_be("device", "cpu, cuda or cuda:N", self.device))
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise DeviceError(f"device {self.device!r} is not there: CUDA has {torch.cuda.device_count()} here")

    @property
    def torch_device(self) -> torch.device:
        """The device."""
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype."""
        return getattr(torch, self.dtype)

    def place(self, module: M, *, training: bool = False) -> M:
        """Puts a module there, in training or inference mode, and returns it."""
        return module.to(device=self.torch_device, dtype=self.torch_dtype).train(training)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws from a seed inside the block; the random numbers outside go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def build_convolution(case: LayerCase) -> nn.Conv2d:
    """Makes the 3 × 3 convolution of a case, which keeps sizes: the peer of all layers, and the source of hard ones."""
    with seeded(case.seed):
        return nn.Conv2d(case.channels, case.channels, kernel_size=3, padding=1)


def build_layer(case: LayerCase) -> RelativeAttention:
    """Makes the layer of a case, in float32 on the CPU, with the path "auto"."""
    if case.kind == "hard":
        return conv_to_attention(build_convolution(case))[0]
    with seeded(case.seed):
        if case.kind == "content":
            return _content_mixer(case)
        return RelativeAttention2d(case.channels, case.channels, case.heads, case.kind)


def draw_images(case: LayerCase, setting: Setting) -> Float[Tensor, "batch channels rows cols"]:
    """Draws the standard normal images of a case."""
    shape, generator = (case.batch, case.channels, case.size, case.size), torch.Generator().manual_seed(case.seed)
    return torch.randn(shape, generator=generator).to(device=setting.torch_device, dtype=setting.torch_dtype)


def with_path(layer: RelativeAttention, impl: str) -> RelativeAttention:
    """Makes the same layer with another path.

    Args:
        layer: A layer in float32 on the CPU.
        impl: The path.

    Returns:
        A layer of its own, with equal parameters.

    Raises:
        UnknownNameError: There is no such path.
        ArgumentError: The path cannot compute the layer.
    """
    options = {**layer.options(), "impl": impl, "content": layer.content_terms or False}
    options["padding"] = [tuple(pair) for pair in options["padding"]]
    with seeded(0):
        other = type(layer)(encoding=copy.deepcopy(layer.encoding), **options)
    other.load_state_dict(layer.state_dict())
    return other.train(layer.training)


def path_taken(layer: RelativeAttention, batch: int, size: int) -> str:
    """Returns the path that a layer takes in its present mode for square images."""
    return layer.plan((batch, layer.in_channels, size, size)).path


def _content_mixer(case: LayerCase) -> RelativeAttention:
    network = AttentionNet(
        "learned_axial",
        content=True,
        width=case.channels,
        depth=1,
        heads=case.heads,
        ffn=case.channels,
        dropout=0.0,
        image_size=2 * case.size,
        initializer_range=0.02 * math.sqrt(400 / case.channels),
    )
    mixer = network.blocks[0].mixer
    assert isinstance(mixer, RelativeAttention)
    return mixer
