"""Training steps of the paper's network: the path that the layers choose, the reference path, and as published."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.cases.case import Case, Contender, bytes_held, path_taken
from benchmarks.cases.published import PublishedAttention
from benchmarks.correctness import FEW_NUMBERS, judge, roads
from benchmarks.record import Check
from benchmarks.setting import Setting, seeded
from convattn.layers import RelativeAttention
from convattn.models import AttentionNet

_CLASSES = 10
_CHECKED_IMAGES = 8
_NOTES = {
    "convattn": 'impl="auto"',
    "reference": "the readable path in every layer",
    "published": "the published formulation in every layer",
    "convattn-bf16": 'impl="auto", mixed with bfloat16',
    "published-bf16": "the published formulation, mixed with bfloat16; not checked, because it rounds its scores",
}


@dataclass(frozen=True, kw_only=True)
class TrainingCase(Case):
    """Training steps of `AttentionNet("quadratic")`: as the layers choose, with the reference path, as published.

    Attributes:
        network: Options of the network that is timed: width, depth, heads, ffn and image_size.
        batch: Number of images in a step.
        dropout: Dropout of the network that is timed.
        small: Options of the network on which the losses are compared, without dropout.
        steps: Number of steps over which the losses are compared.
    """

    network: Mapping[str, Any]
    batch: int
    dropout: float
    small: Mapping[str, Any]
    steps: int = 20
    memory: bool = False

    @property
    def title(self) -> str:
        """What is measured, in words."""
        words = "width {width}, depth {depth}, {image_size}×{image_size} images"
        return (
            f"training step of AttentionNet (quadratic), {words.format(**self.network)}, batch {self.batch}, dropout "
            f"{self.dropout:g}; the losses of {self.steps} steps are compared on {words.format(**self.small)}"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Images, channels, rows and columns."""
        return self.batch, 3, self.network["image_size"], self.network["image_size"]

    def contenders(self, setting: Setting) -> Mapping[str, Callable[[], Contender]]:
        """Returns what builds each contender; the true losses are computed once."""
        side = self.small["image_size"]
        images = setting.draw((min(self.batch, _CHECKED_IMAGES), 3, side, side), self.seed)

        def losses(name: str, x: Tensor) -> dict[str, Tensor]:
            network = compute_as(name, self._build(self.small, 0.0, setting)).to(x.dtype)
            step = training_steps(network, x, self.seed, mixed=is_mixed(name))
            return {"losses": torch.stack([step() for _ in range(self.steps)])}

        @cache
        def references(mixed: bool) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
            name = "reference-bf16" if mixed else "reference"
            return losses("reference", images.double()), [
                losses(name, x) for x in roads(images, FEW_NUMBERS)
            ]

        def check(name: str) -> Check:
            exact, lows = references(is_mixed(name))
            return judge(losses(name, images), exact, lows[1:] if name == "reference" else lows)

        return {name: partial(self._enter, name, setting, check) for name in _NOTES}

    def _enter(self, name: str, setting: Setting, check: Callable[[str], Check]) -> Contender:
        network = compute_as(name, self._build(self.network, self.dropout, setting))
        side = self.network["image_size"] // 2
        met = self.batch, self.network["width"], side, side
        return Contender(
            call=training_steps(
                network, setting.draw(self.shape, self.seed), self.seed, mixed=is_mixed(name)
            ),
            describe=lambda: (_NOTES[name], path_taken(network.blocks[0].mixer, met)),
            check=None if name == "published-bf16" else partial(check, name),
            weights=bytes_held(network),
            ours=True,
        )

    def _build(self, options: Mapping[str, Any], dropout: float, setting: Setting) -> AttentionNet:
        spread = 0.02 * (400 / options["width"]) ** 0.5
        with seeded(self.seed):
            network = AttentionNet(
                "quadratic", **options, dropout=dropout, initializer_range=spread
            )
        return setting.place(network, training=True)


def training_steps(
    network: nn.Module, images: Tensor, seed: int, *, rate: float = 0.05, mixed: bool = False
) -> Callable[[], Tensor]:
    """Makes the function that trains a network for a step, in bfloat16 if mixed, and returns the loss before it."""
    optimizer = torch.optim.SGD(
        [p for p in network.parameters() if p.requires_grad], lr=rate, momentum=0.9
    )
    labels = torch.randint(_CLASSES, (len(images),), generator=torch.Generator().manual_seed(seed))
    labels = labels.to(images.device)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=mixed):
            loss = functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def is_mixed(name: str) -> bool:
    """Tells whether a contender computes in bfloat16 where that is enough."""
    return name.endswith("bf16")


def compute_as(name: str, network: AttentionNet) -> AttentionNet:
    """Makes a network compute as one of the contenders does, and returns it."""
    for block in network.blocks:
        assert isinstance(block.mixer, RelativeAttention)
        if name.startswith("published"):
            block.mixer = PublishedAttention(block.mixer)
        elif name.startswith("reference"):
            block.mixer.impl = "reference"
    return network.train()
