"""Time over the number of pixels, for images and for long sequences; each contender is a function of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from benchmarks.cases.case import Case, Contender, bytes_held, path_taken
from benchmarks.correctness import Truth, some_queries
from benchmarks.measure import make_call
from benchmarks.record import Check
from benchmarks.setting import Setting, seeded
from convattn.convert import conv_to_attention
from convattn.encodings import Quadratic
from convattn.layers import RelativeAttention, RelativeAttention1d, RelativeAttention2d

_SMALL = {1: 512, 2: 8}
"""Pixels along each axis of the call that loads all code."""


@dataclass(frozen=True, kw_only=True)
class ScalingCase(Case):
    """Modules that keep sizes, on one image or sequence of one size.

    Attributes:
        modules: Names of what is measured; see `MODULES`.
        dims: Number of axes: 2 for square images, 1 for sequences.
        channels: Channels in and out.
        heads: Number of heads.
        size: Pixels along each axis.
        training: Whether gradients of input and parameters are taken too, in training mode; else inference.
    """

    modules: tuple[str, ...]
    dims: int
    channels: int
    heads: int
    size: int
    training: bool = False

    @property
    def title(self) -> str:
        """What is measured, in words."""
        what = "images" if self.dims == 2 else "sequences"
        task = "forward and backward" if self.training else "forward"
        return f"{what} of several sizes, {self.channels} channels, batch 1, {task}"

    @property
    def shape(self) -> tuple[int, ...]:
        """One image, channels, and pixels along each axis."""
        return 1, self.channels, *(self.size,) * self.dims

    def contenders(self, setting: Setting) -> Mapping[str, Callable[[], Contender]]:
        """Returns what builds each contender."""
        return {name: partial(self._enter, name, setting) for name in self.modules}

    def _enter(self, name: str, setting: Setting) -> Contender:
        with seeded(self.seed):
            module = setting.place(MODULES[name](self), training=self.training)
        images = setting.draw(self.shape, self.seed)
        small = images[(..., *(slice(_SMALL[self.dims]),) * self.dims)]
        return Contender(
            call=make_call(module, images, training=self.training),
            describe=lambda: (
                _NOTES[name].format(heads=self.heads),
                path_taken(module, self.shape),
            ),
            check=partial(self._check, module, images)
            if isinstance(module, RelativeAttention)
            else None,
            warm_up=make_call(module, small, training=self.training),
            weights=bytes_held(module),
            ours=isinstance(module, RelativeAttention),
        )

    def _check(self, layer: RelativeAttention, images: Tensor) -> Check:
        queries = some_queries(self.size**self.dims, images.device)
        return Truth(layer, images, queries, gradients=self.training).check(layer, layer)


class LongConvolution(nn.Module):
    """A convolution with as many taps as the sequence has pixels, one kernel per channel, by transforms; causal."""

    def __init__(self, channels: int, length: int) -> None:
        """Draws the kernels."""
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(channels, length) / length**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Convolves (batch, channels, pixels) with the first taps."""
        size = 2 * x.shape[-1]
        kernel = self.kernel[:, : x.shape[-1]]
        spectrum = torch.fft.rfft(x, size) * torch.fft.rfft(kernel, size)
        return torch.fft.irfft(spectrum, size)[..., : x.shape[-1]]


def _hard(case: ScalingCase) -> RelativeAttention:
    layer, _ = conv_to_attention(nn.Conv2d(case.channels, case.channels, kernel_size=3, padding=1))
    layer.impl = "shift"
    return layer


def _taps(case: ScalingCase, sharpness: float) -> RelativeAttention:
    centres = [[float(tap - case.heads // 2)] for tap in range(case.heads)]
    encoding = Quadratic(case.heads, 1, centres=centres, sharpness=sharpness)
    return RelativeAttention1d(
        case.channels, case.channels, num_heads=case.heads, encoding=encoding
    )


def _encoded(case: ScalingCase, encoding: str, impl: str) -> RelativeAttention:
    return RelativeAttention2d(
        case.channels, case.channels, num_heads=case.heads, encoding=encoding, impl=impl
    )


MODULES: Mapping[str, Callable[[ScalingCase], nn.Module]] = MappingProxyType(
    {
        "separable": lambda case: _encoded(case, "quadratic", "separable"),
        "fourier": lambda case: _encoded(case, "generalized_quadratic", "fourier"),
        "shift": _hard,
        "hard": lambda case: _taps(case, 128.0),
        "soft": lambda case: _taps(case, 1.0),
        "conv": lambda case: nn.Conv1d(
            case.channels, case.channels, case.heads, padding=case.heads // 2
        ),
        "long conv": lambda case: LongConvolution(case.channels, case.size),
    }
)
"""Builders of the modules: "separable", "fourier" and "shift" of images, the others of sequences."""

_NOTES = {
    "separable": "{heads} quadratic heads",
    "fourier": "{heads} generalized quadratic heads",
    "shift": "hard heads of a 3×3 convolution",
    "hard": "{heads} quadratic heads on neighbouring pixels, sharpness 128: one-hot",
    "soft": "{heads} quadratic heads on neighbouring pixels, sharpness 1",
    "conv": "nn.Conv1d with {heads} taps: another function",
    "long conv": "a convolution with as many taps as pixels, one kernel per channel, by torch.fft: another function",
}
