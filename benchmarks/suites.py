"""The suites "layers", "networks" and "sequences": every case a row of data, nothing computed."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.cases.layer import LayerCase
from benchmarks.cases.network import NetworkCase
from benchmarks.cases.scaling import ScalingCase
from benchmarks.cases.training import TrainingCase
from convattn.errors import UnknownNameError

_PATHS = ("separable", "fourier", "shift")


@dataclass(frozen=True)
class Suite:
    """Cases that are run together and written on one page.

    Attributes:
        name: Name of the suite.
        file: Name of its files, without ending.
        title: Heading of its page.
        reading: How to read its tables, in Markdown.
        cases: Lists the cases; of tiny sizes where it is given True.
        baselines: Contenders that the others are divided by.
        needs: Package without which it cannot run.
        packages: Packages whose versions are recorded.
        not_covered: What it says nothing about.
    """

    name: str
    file: str
    title: str
    reading: str
    cases: Callable[[bool], tuple[Case, ...]]
    baselines: tuple[str, ...]
    needs: str
    packages: tuple[str, ...]
    not_covered: tuple[str, ...]


def find_suite(name: str) -> Suite:
    """Finds a suite by its name."""
    if name not in SUITES:
        raise UnknownNameError("suite", name, SUITES)
    return SUITES[name]


def choose(cases: Iterable[Case], names: Iterable[str]) -> tuple[Case, ...]:
    """Picks cases by name.

    Args:
        cases: All cases.
        names: Names of cases, or of groups of cases; none at all stands for all.

    Returns:
        The cases, in their own order.

    Raises:
        UnknownNameError: There is neither a case nor a group of one of the names.

    Example:
        >>> [case.name for case in choose(find_suite("networks").cases(False), ["resnet18"])]
        ['resnet18-1', 'resnet18-16']
    """
    cases, wanted = tuple(cases), set(names)
    known = {name for case in cases for name in (case.name, case.group)} - {""}
    for name in sorted(wanted - known):
        raise UnknownNameError("case", name, known)
    return tuple(case for case in cases if not wanted or {case.name, case.group} & wanted)


def _layers(quick: bool) -> tuple[Case, ...]:
    return _tiny_layers() if quick else _full_layers()


def _full_layers() -> tuple[Case, ...]:
    batches = {16: 25, 32: 4, 64: 1}

    def layer(name: str, kind: str, size: int, **options: Any) -> LayerCase:
        sizes = {"channels": 400, "heads": 9, "size": size, "batch": batches[size], **options}
        return LayerCase(name=name.format(size=size), kind=kind, **sizes)

    plain = [
        layer(f"quadratic-{{size}}-{task}", "quadratic", size, training=task == "training")
        for size in batches
        for task in ("forward", "training")
    ]
    generalized = [
        layer("generalized-quadratic-{size}", "generalized_quadratic", size) for size in (16, 64)
    ]
    distance = [layer("distance-{size}", "distance", size) for size in (16, 64)]
    hard = [layer("hard-{size}", "hard", size) for size in batches]
    content = layer("content-{size}-training", "content", 16, batch=10, training=True)
    scaling = _scaling((16, 32, 64, 128, 224), channels=400, heads=9)
    paper = {"width": 400, "depth": 6, "heads": 9, "ffn": 512, "image_size": 32}
    small = {"width": 36, "depth": 2, "heads": 9, "ffn": 48, "image_size": 16}
    training = _training(paper, small, batch=25, steps=20)
    return (*plain, *generalized, *distance, *hard, content, *scaling, *training)


def _tiny_layers() -> tuple[Case, ...]:
    tiny: dict[str, Any] = {"channels": 16, "heads": 3, "size": 8, "batch": 2, "memory": False}
    hard: dict[str, Any] = {**tiny, "heads": 9}
    measured: dict[str, Any] = {**tiny, "memory": True}
    ours = ("convattn", "reference", "published")
    network = {"width": 16, "depth": 1, "heads": 3, "ffn": 16, "image_size": 8}
    return (
        LayerCase(name="quadratic-8-forward", kind="quadratic", **tiny),
        LayerCase(name="quadratic-8-training", kind="quadratic", **tiny, training=True),
        LayerCase(name="generalized-quadratic-8", kind="generalized_quadratic", **tiny),
        LayerCase(name="distance-8", kind="distance", **tiny),
        LayerCase(name="hard-8", kind="hard", **hard),
        LayerCase(name="content-8-training", kind="content", **measured, forms=ours, training=True),
        *_scaling((8, 16, 32), channels=16, heads=3),
        *_training(network, network, batch=4, steps=5),
    )


def _training(
    network: dict[str, int], small: dict[str, int], *, batch: int, steps: int
) -> tuple[Case, ...]:
    sizes: dict[str, Any] = {"network": network, "small": small, "batch": batch, "steps": steps}
    return (
        TrainingCase(name="training-step-plain", dropout=0.0, **sizes),
        TrainingCase(name="training-step-dropout", dropout=0.1, **sizes),
    )


def _scaling(sizes: tuple[int, ...], *, channels: int, heads: int) -> tuple[Case, ...]:
    """Lists images of several sizes, with 64 channels instead if the largest might not fit into memory."""
    needed = 4 * (heads + 4) * channels * max(sizes) ** 2 * 4  # float32, with room for transforms
    channels = channels if 2 * needed <= free_memory() else min(64, channels)
    common: dict[str, Any] = {"group": "scaling", "modules": _PATHS, "dims": 2, "memory": False}
    return tuple(
        ScalingCase(name=f"scaling-{size}", channels=channels, heads=heads, size=size, **common)
        for size in sizes
    )


def _networks(quick: bool) -> tuple[Case, ...]:
    if quick:
        names, batches, size = ("test_resnet", "test_convnext", "test_efficientnet"), (1, 2), 64
    else:
        names, batches, size = (
            ("resnet18", "resnet50", "convnext_tiny", "efficientnet_b0"),
            (1, 16),
            224,
        )
    return tuple(
        NetworkCase(
            name=f"{name}-{images}",
            group=name,
            network=name,
            images=images,
            size=size,
            memory=not quick or (name, images) == ("test_resnet", 2),
        )
        for name in names
        for images in batches
    )


def _sequences(quick: bool) -> tuple[Case, ...]:
    lengths = (64, 128, 256) if quick else (1024, 4096, 16384, 65536)
    return tuple(
        ScalingCase(
            name=f"sequences-{task}-{length}",
            group=f"sequences-{task}",
            modules=("hard", "soft", "conv", "long conv"),
            dims=1,
            channels=16,
            heads=9,
            size=length,
            training=task == "training",
            memory=not quick or (task, length) == ("training", 256),
        )
        for task in ("forward", "training")
        for length in lengths
    )


def free_memory() -> int:
    """Returns the bytes of memory that are free."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


_CHECK = """\
- **check**: "passed" means that every error is within the error budget 2 (max|lo − hi| + eps · max|hi|), where hi is
  {hi} in float64 and lo {hi} in the tested dtype, from the images and from images rounded
  in other ways. {compared} "time only" marks another function.
"""
_OUTPUTS = "Outputs are compared, and where gradients are taken those of the images and of every parameter."
_TIMES = """\
- **ms** is the median over the rounds of one call, **min – max** its extremes.
- **÷ NAME** is the time divided by that of NAME: the median of the ratios of one round, with their extremes.
- **weights** is the memory of parameters, buffers and frozen matrices; **call** is the largest memory of one call
  beyond what was held before it, in a process of its own; **memory ÷ NAME** divides the sum of both.
"""

SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "layers": Suite(
            name="layers",
            file="layers",
            title="How fast are the layers?",
            reading=_CHECK.format(hi="the definition of attention", compared=_OUTPUTS)
            + _TIMES
            + """\
- **conv** is `nn.Conv2d`, 3 × 3 with as many channels. **published** is the formulation of the paper and its networks:
  scores of all pairs of pixels, a softmax, one einsum. **reference** is this library's readable path, which makes the
  weights once for all images and multiplies them in one product.
""",
            cases=_layers,
            baselines=("conv", "published", "reference"),
            needs="matplotlib",
            packages=("torch", "numpy", "timm", "torchvision"),
            not_covered=(
                "other processors and accelerators, numbers of threads, dtypes and versions than those above",
                "torch.compile of the layers, quantised weights, CUDA graphs",
                "1-D and 3-D layers, groups, strides, dilations, padding modes other than zeros",
                "trained weights: heads stand where they are initialised, or at the taps of a random convolution",
                "gradients of hard heads, of the paths in the scaling, and of large images",
                "energy, and time to load or convert a model",
            ),
        ),
        "networks": Suite(
            name="networks",
            file="networks-speed",
            title="How fast are converted networks?",
            reading="""\
Networks have random weights and are as they are (original), or as `network_to_attention` makes them.

- **planned**: every convolution is an attention layer that computes as its plan says; heads so hard that they look at
  one pixel run as the convolution that they are (path "shift").
- **separable**: every layer takes a softmax over all keys along each axis and multiplies the pixels with these
  matrices. Keys with less attention than rounding shows are left out of the products, as everywhere in this library.
- **frozen**: the same after `freeze`. It makes torch's convolutions of hard heads, and all matrices of the others
  beforehand for images of this size; without it every call makes them.
- The weights of all pairs of queries and keys, heads × queries × keys × 4 bytes, are computed, not measured.
"""
            + _CHECK.format(hi="the original", compared="The output for one image is compared.")
            + _TIMES,
            cases=_networks,
            baselines=("original",),
            needs="timm",
            packages=("torch", "numpy", "timm"),
            not_covered=(
                "other networks, sizes, processors, accelerators, numbers of threads, dtypes and versions than those",
                "trained weights, and soft heads: each head here looks at one pixel only, as a convolution does",
                "training, torch.compile, exported networks, images in other memory formats",
                "time and memory of the conversion itself, and of freezing",
            ),
        ),
        "sequences": Suite(
            name="sequences",
            file="sequences",
            title="How fast are long sequences?",
            reading=_CHECK.format(hi="the definition of attention", compared=_OUTPUTS) + _TIMES,
            cases=_sequences,
            baselines=("conv",),
            needs="matplotlib",
            packages=("torch", "numpy"),
            not_covered=("other channels, batches, dtypes and widths", "images", "accelerators"),
        ),
    }
)
"""Every suite by its name."""
