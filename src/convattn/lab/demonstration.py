"""What the demo shows: a convolution of a photograph as attention, and a trained network as convolutions and back."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from convattn.convert import conv_to_attention, network_to_attention, network_to_conv, save_layer
from convattn.convert.certificate import Certificate, NetworkCertificate
from convattn.errors import optional_module
from convattn.heads import read_heads
from convattn.lab.figures import (
    Comparison,
    classified_images,
    convolution_and_attention,
    head_moves,
)
from convattn.lab.html_pages import write_html
from convattn.layers import RelativeAttention
from convattn.networks import load_network, save_network
from convattn.networks.datasets import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    class_scores,
    load_samples,
    normalise,
)
from convattn.networks.pretrained import CARD, PretrainedCard
from convattn.record import Record
from convattn.viewer import build_scene, write_page
from convattn.viewer.exhibition import UNTRAINED, gather
from convattn.wording import counted


@dataclass(frozen=True)
class Conversion:
    """A conversion of the filters, and its error on the photograph."""

    certificate: Certificate  # What the conversion promises
    difference: float  # Largest difference between attention and convolution on the photograph
    exact_difference: float  # Largest difference between attention and the convolution in float64
    rounding: float  # Largest difference between the convolution and itself in float64
    unit: float  # Machine epsilon times the largest output: what rounding changes an output by
    figure: str  # Name of the figure's file


@dataclass(frozen=True)
class NetworkConversion:
    """A conversion of the trained network to convolutions."""

    kernel: int | None  # Taps per axis that every layer was given; None for as many as each needs
    certificate: NetworkCertificate  # What was measured of it, on the embedded images

    @property
    def words(self) -> str:
        """The window in words."""
        if self.kernel is not None:
            return f"{self.kernel} × {self.kernel}"
        sides = sorted({taps for layer in self.certificate.layers for taps in layer.kernel_size})
        return f"as needed, {sides[0]} × {sides[0]}" + (
            f" to {sides[-1]} × {sides[-1]}" if len(sides) > 1 else ""
        )


@dataclass(frozen=True)
class TrainedNetwork:
    """The trained network that comes with the package, and what was made of it."""

    card: PretrainedCard  # What its card says
    labels: tuple[int, ...]  # Class of each embedded image
    seen: tuple[int, ...]  # Class that the network gives it, here
    classes: tuple[str, ...]  # Names of the classes
    conversions: tuple[
        NetworkConversion, ...
    ]  # To convolutions: as many taps as needed, then smaller windows
    back: NetworkCertificate  # The first of these convolutions to attention again
    images: str  # Name of the file that draws the images with their classes
    heads: str  # Name of the file that draws the heads at the start and the end of its training
    credit: str  # Where the images are from

    @property
    def right(self) -> int:
        """Number of images that the network classifies correctly."""
        return sum(seen == label for seen, label in zip(self.seen, self.labels, strict=True))

    @property
    def as_on_card(self) -> bool:
        """Whether the network classifies every image as its card says."""
        return self.seen == self.card.sample_classes


@dataclass(frozen=True)
class Demonstration(Record):
    """What the demo showed."""

    schema_version: ClassVar[int] = 3

    conversions: tuple[
        Conversion, ...
    ]  # The filters converted with hard heads, then with soft ones
    network: TrainedNetwork  # The trained network
    photograph: str  # Credit of the photograph
    seconds: float  # Wall time of everything, in seconds
    passed: bool  # Whether no conversion failed, the network sees what its card says, and it came back exact or close

    def summary(self) -> str:
        """Returns what was shown, in a few lines of plain text."""
        hard, soft = self.conversions
        network = self.network
        rounding = hard.exact_difference / hard.unit
        own, softness = hard.rounding / hard.unit, soft.certificate.sharpness
        seen = "as" if network.as_on_card else "NOT what"
        found = [(item.words, item.certificate) for item in network.conversions]
        windows = [
            f"{words}: {made.top1_changed} of {made.top1_total}, {made.verdict}"
            for words, made in found
        ]
        return "\n".join(
            [
                hard.certificate.summary(),
                "",
                f"on the photograph  hard heads differ from the exact convolution by {rounding:.2g} roundings at most",
                f"                   (the float32 convolution itself by {own:.2g}),",
                f"                   heads of sharpness {softness:.3g} by {soft.exact_difference / soft.unit:.2g}",
                f"trained network    {seen} its card says; right on {network.right} of {len(network.seen)} images",
                f"                   {network.card.summary()}",
                "to convolutions    windows, predictions that changed, and verdicts:",
                *(f"                   {line}" for line in windows),
                f"to attention       {network.back.verdict}: the first of these, to hard heads",
                f"time               {self.seconds:.1f} s in all",
            ]
        )


SOFT_SHARPNESS = 3.0

_FILTERS = {
    "vertical edges": [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]],
    "horizontal edges": [[-1, -2, -1], [0, 0, 0], [1, 2, 1]],
    "Laplacian": [[0, 1, 0], [1, -4, 1], [0, 1, 0]],
    "blur": [[1 / 16, 2 / 16, 1 / 16], [2 / 16, 4 / 16, 2 / 16], [1 / 16, 2 / 16, 1 / 16]],
}
"""Sobel's two operators, the Laplacian and the binomial blur."""

_CREDIT = "danielbuechele, flickr.com/photos/danielbuechele/6061409035, CC BY 2.0"
"""Photographer, page and licence of the photograph, which comes with scikit-learn."""

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the grey value (ITU-R BT.601)."""


def filter_bank() -> nn.Conv2d:
    """Builds a 3×3 convolution of colour images with four outputs: two edge detectors, the Laplacian and a blur.

    It repeats the border's pixels and so keeps the image's size.
    """
    conv = nn.Conv2d(
        3, len(_FILTERS), kernel_size=3, padding=1, padding_mode="replicate", bias=False
    )
    kernels = torch.tensor(list(_FILTERS.values()))
    with torch.no_grad():
        conv.weight.copy_(torch.einsum("okl,c->ockl", kernels, torch.tensor(_LUMA)))
    return conv


def show_conversions(folder: Path) -> list[Conversion]:
    """Converts the filters with hard heads, then with soft ones, saves the layers and draws both on a photograph."""
    sklearn = optional_module("sklearn.datasets", "scikit-learn", "train")
    rows = torch.from_numpy(sklearn.datasets.load_sample_image("china.jpg").copy())
    pixels = (
        rearrange(rows, "rows cols channels -> 1 channels rows cols").contiguous().float() / 255
    )
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
    path: Path, pixels: Tensor, conv: nn.Conv2d, layer: RelativeAttention, certificate: Certificate
) -> Conversion:
    """Runs the convolution and the layer on the photograph, measures their difference and draws it."""
    softmax = copy.deepcopy(layer)
    softmax.impl = (
        "separable"  # hard heads would run as the convolution that they are compared with
    )
    with torch.inference_mode():
        made, low = softmax(pixels), conv(pixels)
        high = copy.deepcopy(conv).double()(pixels.double())
    unit = torch.finfo(low.dtype).eps * high.abs().max().item()
    comparison = Comparison(
        photograph=rearrange(pixels[0], "channels rows cols -> rows cols channels").numpy(),
        names=tuple(_FILTERS),
        kernels=reduce(
            conv.weight.detach(), "outputs channels rows cols -> outputs rows cols", "sum"
        ).numpy(),
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


KERNELS = (None, 3, 5, 7)
"""Windows of the convolutions; None leaves as many taps to each layer as it needs."""


def show_network(folder: Path, source: Path) -> TrainedNetwork:
    """Runs the trained network in a folder on the embedded images, draws its heads, and converts it both ways.

    The convolutions with as many taps as each layer needs are saved in `folder`.
    """
    card = PretrainedCard.load(source / CARD)
    network, samples = load_network(source), load_samples()
    images = normalise(samples.split.images, CIFAR10_MEAN, CIFAR10_STD)
    seen = class_scores(network, images).argmax(1).tolist()
    pixels = rearrange(
        samples.split.images, "images channels rows cols -> images rows cols channels"
    ).numpy()
    right = [samples.classes[label] for label in samples.split.labels.tolist()]
    pictures = classified_images(
        folder / "images.png", pixels, right, [samples.classes[number] for number in seen]
    )
    heads = head_moves(folder / "heads.png", read_heads(source))
    words = f"{counted(len(images), 'test image')} of CIFAR-10"
    made = []
    for kernel in KERNELS:
        convolutions, certificate = network_to_conv(
            network, kernel_size=kernel, images=images, labels=samples.split.labels
        )
        made.append((convolutions, replace(certificate, images=words)))
    own, certificate = made[0]
    save_network(own, folder / "as-convolutions", certificate=certificate)
    _, back = network_to_attention(own, images=images)
    return TrainedNetwork(
        card=card,
        labels=tuple(samples.split.labels.tolist()),
        seen=tuple(seen),
        classes=samples.classes,
        conversions=tuple(
            NetworkConversion(kernel, item) for kernel, (_, item) in zip(KERNELS, made, strict=True)
        ),
        back=replace(back, images=words),
        images=pictures.name,
        heads=heads.name,
        credit=samples.credit,
    )


def demonstrate(folder: Path, network: Path, *, tell: Callable[[str], None]) -> Demonstration:
    """Makes everything that the demo shows in an empty folder, and returns it; it is in demo.json there as well.

    `network` is the folder of the trained network. `tell` is called with a line before each of the three steps.
    """
    began = time.perf_counter()
    tell("1/3  converting a convolution of a photograph to attention")
    conversions = show_conversions(folder)
    tell("2/3  converting a trained network of attention to convolutions and back")
    trained = show_network(folder, network)
    tell("3/3  writing the interactive page of the trained network")
    pair = gather(str(network), compare=[UNTRAINED])
    write_page(build_scene(pair.exhibits, names=pair.names, labels=pair.labels), folder / "view")
    held = all(
        item.certificate.verdict != "failed" for item in (*conversions, *trained.conversions)
    )
    shown = Demonstration(
        conversions=tuple(conversions),
        network=trained,
        photograph=_CREDIT,
        seconds=time.perf_counter() - began,
        passed=held and trained.as_on_card and trained.back.passed,
    )
    shown.save(folder / "demo.json")
    write_html("demo_page.html", folder, shown=shown)
    return shown
