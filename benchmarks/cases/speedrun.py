"""Training steps of the speed run's network: with soft heads that learn, with hard ones, with convolutions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn

from benchmarks.cases.case import Case, Contender, bytes_held
from benchmarks.cases.training import is_mixed, training_steps
from benchmarks.correctness import FEW_NUMBERS, judge, roads
from benchmarks.record import Check
from benchmarks.setting import Setting, seeded
from convattn.lab.speed_net import SpeedNet
from convattn.layers import RelativeAttention

__all__ = ["SpeedRunCase"]

_MIXINGS = {
    "convattn": ("attention", "nine quadratic heads in every layer; centres and sharpness learn"),
    "hard": ("hard", "nine fixed heads on the 3 × 3 grid: another function"),
    "conv": ("conv", "nn.Conv2d, 3 × 3, in every layer: another function"),
    "convattn-bf16": ("attention", "the nine quadratic heads, mixed with bfloat16"),
    "conv-bf16": ("conv", "nn.Conv2d, mixed with bfloat16: another function"),
}
_RATE = 1e-3


@dataclass(frozen=True, kw_only=True)
class SpeedRunCase(Case):
    """Training steps of `SpeedNet`: nine heads, the same heads fixed, or nine taps.

    Attributes:
        widths: Channels of the stages of the network that is timed.
        batch: Number of images in a step.
        size: Rows and columns of the images.
        small: Channels of the stages of the network on which losses are compared, with images of 8 × 8.
        steps: Number of steps over which the losses are compared.
    """

    widths: tuple[int, ...]
    batch: int
    size: int
    small: tuple[int, ...] = (8, 12)
    steps: int = 5
    memory: bool = False

    @property
    def title(self) -> str:
        """What is measured, in words."""
        widths = ", ".join(map(str, self.widths))
        return (
            f"training step of SpeedNet, widths {widths}, {self.size}×{self.size} images, batch {self.batch}; the "
            f"losses of {self.steps} steps are compared on a small one"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Images, channels, rows and columns."""
        return self.batch, 3, self.size, self.size

    def contenders(self, setting: Setting) -> Mapping[str, Callable[[], Contender]]:
        """Returns what builds each contender; the true losses are computed once."""
        images = setting.draw((4, 3, 8, 8), self.seed)

        def losses(x: Tensor, impl: str, mixed: bool) -> dict[str, Tensor]:
            network = self._build("attention", self.small, setting).to(x.dtype)
            for module in network.modules():
                if isinstance(module, RelativeAttention):
                    module.impl = impl
            step = training_steps(network, x, self.seed, rate=_RATE, mixed=mixed)
            return {"losses": torch.stack([step() for _ in range(self.steps)])}

        @cache
        def references(mixed: bool) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
            exact = losses(images.double(), "reference", False)
            return exact, [losses(x, "reference", mixed) for x in roads(images, FEW_NUMBERS)]

        def check(mixed: bool) -> Check:
            return judge(losses(images, "auto", mixed), *references(mixed))

        return {name: partial(self._enter, name, setting, check) for name in _MIXINGS}

    def _enter(self, name: str, setting: Setting, check: Callable[[bool], Check]) -> Contender:
        (mixing, note), mixed = _MIXINGS[name], is_mixed(name)
        network = self._build(mixing, self.widths, setting)
        images = setting.draw(self.shape, self.seed)
        return Contender(
            call=training_steps(network, images, self.seed, rate=_RATE, mixed=mixed),
            describe=lambda: (note, None),
            check=partial(check, mixed) if mixing == "attention" else None,
            weights=bytes_held(network),
            ours=True,
        )

    def _build(self, mixing: str, widths: tuple[int, ...], setting: Setting) -> nn.Module:
        with seeded(self.seed):
            network = SpeedNet(mixing, widths=widths)
        return setting.place(network, training=True)
