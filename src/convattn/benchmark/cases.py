"""What the suites "layers" and "networks" measure: every case a row of data, nothing computed."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from convattn.errors import UnknownNameError

__all__ = ["Case", "LayerCase", "NetworkCase", "NetworkSize", "ScalingCase", "TrainingCase", "choose", "find_suite"]

SUITES = ("layers", "networks")
"""Names of the suites."""

_ALL = ("convattn", "reference", "published", "conv", "sdpa", "gpsa", "flex")
_TORCH = ("convattn", "reference", "published", "conv", "sdpa")


@dataclass(frozen=True)
class LayerCase:
    """One layer on images of one size, against its peers.

    Attributes:
        name: Name of the case, as `--case` takes it.
        kind: What layer: the name of an encoding, "hard" (made from a 3 × 3 convolution) or "content" (the mixer of
            `AttentionNet("learned_axial", content=True)`).
        channels: Channels in and out.
        heads: Number of heads.
        size: Rows and columns of the images.
        batch: Number of images.
        contenders: Names of what is measured.
        training: Whether gradients of input and parameters are taken too, in training mode; else inference.
        memory: Whether peak memory is measured, each contender in a process of its own.
        seed: Seed of weights and images.
    """

    name: str
    kind: str
    channels: int
    heads: int
    size: int
    batch: int
    contenders: tuple[str, ...] = _TORCH
    training: bool = False
    memory: bool = True
    seed: int = 0

    @property
    def title(self) -> str:
        """What is measured, in words."""
        task = "forward and backward" if self.training else "forward"
        what = {"hard": "hard heads of a 3×3 convolution", "content": "learned axial with content"}.get(self.kind)
        sizes = f"{self.heads} heads, {self.channels} channels, {self.size}×{self.size}, batch {self.batch}"
        return f"{what or self.kind.replace('_', ' ')}, {sizes}, {task}"


@dataclass(frozen=True)
class NetworkSize:
    """Sizes of an attention network and of what it is fed.

    Attributes:
        width: Channels of the feature maps.
        depth: Number of blocks.
        heads: Number of heads.
        ffn: Width of the feed-forward networks' hidden layers.
        image: Rows and columns of the images.
        batch: Number of images in a step.
    """

    width: int
    depth: int
    heads: int
    ffn: int
    image: int
    batch: int


@dataclass(frozen=True)
class TrainingCase:
    """Training steps of `AttentionNet("quadratic")`: as the layers choose, with the reference path, as published.

    Attributes:
        name: Name of the case.
        network: Sizes of the network that is timed.
        dropout: Dropout of the network that is timed.
        small: Sizes of the network on which the losses are compared, without dropout.
        steps: Number of steps over which the losses are compared.
        seed: Seed of weights, images and labels.
    """

    name: str
    network: NetworkSize
    dropout: float
    small: NetworkSize
    steps: int = 20
    seed: int = 0

    @property
    def title(self) -> str:
        """What is measured, in words."""
        size = self.network
        return (
            f"training step of AttentionNet (quadratic, width {size.width}, {size.depth} blocks), "
            f"{size.image}×{size.image} images, batch {size.batch}, dropout {self.dropout:g}"
        )


@dataclass(frozen=True)
class ScalingCase:
    """Time of each path against the number of pixels, at inference on one image.

    Attributes:
        name: Name of the case.
        paths: Values of `impl`: "separable" (quadratic), "fourier" (generalized quadratic) and "shift" (hard heads of a
            3 × 3 convolution).
        channels: Channels in and out.
        heads: Number of heads of the first two.
        sizes: Rows and columns of the images.
        seed: Seed of weights and images.
        fitted: Whether an exponent is fitted to the times; at tiny sizes it would be that of the calls' overhead.
    """

    name: str
    paths: tuple[str, ...]
    channels: int
    heads: int
    sizes: tuple[int, ...]
    seed: int = 0
    fitted: bool = True

    @property
    def title(self) -> str:
        """What is measured, in words."""
        return f"time against the number of pixels, {self.channels} channels, batch 1, forward"

    def fitting(self, available: int | None = None) -> "ScalingCase":
        """Returns the case with 64 channels instead, if the largest image might not fit into memory.

        Args:
            available: Bytes that are free; None asks the system.

        Returns:
            This case, or one of 64 channels for all sizes.
        """
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") if available is None else available
        needed = 4 * (self.heads + 4) * self.channels * max(self.sizes) ** 2 * 4  # float32, with room for transforms
        return self if 2 * needed <= free else replace(self, channels=min(64, self.channels))


@dataclass(frozen=True)
class NetworkCase:
    """A network with random weights, as it is and as attention, at inference.

    Attributes:
        name: Name of the case.
        network: Name of the network in timm.
        size: Rows and columns of the images.
        batches: Numbers of images, the smallest first.
        memory: Whether peak memory is measured, each form in a process of its own.
        seed: Seed of weights and images.
    """

    name: str
    network: str
    size: int = 224
    batches: tuple[int, ...] = (1, 16)
    memory: bool = True
    seed: int = 0

    @property
    def title(self) -> str:
        """What is measured, in words."""
        return f"{self.network} of timm, {self.size}×{self.size}, as it is and as attention, forward"


Case = LayerCase | TrainingCase | ScalingCase | NetworkCase


def find_suite(name: str, *, quick: bool = False) -> tuple[Case, ...]:
    """Lists the cases of a suite.

    Args:
        name: Name of the suite, "layers" or "networks".
        quick: Whether to have tiny sizes, which show that everything works and nothing about speed.

    Returns:
        The cases, in the order in which they are measured.

    Raises:
        UnknownNameError: There is no suite of that name.
    """
    if name not in SUITES:
        raise UnknownNameError("suite", name, SUITES)
    if name == "networks":
        return _networks(quick=quick)
    return _quick() if quick else _full()


def choose(cases: Iterable[Case], names: Iterable[str]) -> tuple[Case, ...]:
    """Picks cases by name.

    Args:
        cases: All cases.
        names: Names of those wanted; none at all stands for all.

    Returns:
        The cases, in their own order.

    Raises:
        UnknownNameError: There is no case of one of the names.

    Example:
        >>> [case.name for case in choose(find_suite("layers"), ["scaling"])]
        ['scaling']
    """
    by_name, wanted = {case.name: case for case in cases}, set(names)
    for name in sorted(wanted - set(by_name)):
        raise UnknownNameError("case", name, by_name)
    return tuple(case for name, case in by_name.items() if not wanted or name in wanted)


def _full() -> tuple[Case, ...]:
    batches = {16: 25, 32: 4, 64: 1}
    wide: dict[str, Any] = {"channels": 400, "heads": 9}
    plain = [
        LayerCase(f"quadratic-{size}-{task}", "quadratic", **wide, size=size, batch=batch, contenders=_ALL, training=on)
        for size, batch in batches.items()
        for task, on in (("forward", False), ("training", True))
    ]
    others = [
        LayerCase(f"{kind.replace('_', '-')}-{size}", kind, **wide, size=size, batch=batches[size])
        for kind in ("generalized_quadratic", "distance")
        for size in (16, 64)
    ]
    hard = [LayerCase(f"hard-{size}", "hard", **wide, size=size, batch=batch) for size, batch in batches.items()]
    content = LayerCase("content-16-training", "content", **wide, size=16, batch=10, training=True)
    paper = NetworkSize(width=400, depth=6, heads=9, ffn=512, image=32, batch=25)
    small = NetworkSize(width=36, depth=2, heads=9, ffn=48, image=16, batch=8)
    training = [
        TrainingCase(f"training-step-{name}", paper, p, small) for name, p in (("plain", 0.0), ("dropout", 0.1))
    ]
    sizes = (16, 32, 64, 128, 224)
    return (*plain, *others, *hard, content, ScalingCase("scaling", _PATHS, **wide, sizes=sizes), *training)


def _quick() -> tuple[Case, ...]:
    tiny: dict[str, Any] = {"channels": 16, "heads": 3, "size": 8, "batch": 2, "memory": False}
    content = LayerCase("content-8-training", "content", **tiny)
    network = NetworkSize(width=16, depth=1, heads=3, ffn=16, image=8, batch=4)
    return (
        LayerCase("quadratic-8-forward", "quadratic", **tiny, contenders=_ALL),
        LayerCase("quadratic-8-training", "quadratic", **tiny, contenders=_ALL, training=True),
        LayerCase("generalized-quadratic-8", "generalized_quadratic", **tiny),
        LayerCase("distance-8", "distance", **tiny),
        replace(LayerCase("hard-8", "hard", **tiny), heads=9),
        replace(content, contenders=("convattn", "reference", "published"), training=True, memory=True),
        ScalingCase("scaling", _PATHS, channels=16, heads=3, sizes=(8, 16, 32), fitted=False),
        TrainingCase("training-step-plain", network, 0.0, network, steps=5),
        TrainingCase("training-step-dropout", network, 0.1, network, steps=5),
    )


def _networks(*, quick: bool) -> tuple[Case, ...]:
    if quick:
        small = ("test_resnet", "test_convnext", "test_efficientnet")
        return tuple(NetworkCase(name, name, size=64, batches=(1, 2), memory=name == "test_resnet") for name in small)
    names = ("resnet18", "resnet50", "convnext_tiny", "efficientnet_b0")
    return tuple(NetworkCase(name, name) for name in names)


_PATHS = ("separable", "fourier", "shift")
