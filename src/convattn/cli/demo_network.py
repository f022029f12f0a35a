"""Second part of the demo: a trained network of the package, what it sees, where its heads look, and conversions."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from convattn.cli.demo_record import NetworkConversion, TrainedNetwork
from convattn.records import NetworkCertificate, PretrainedCard
from convattn.records.words import counted

if TYPE_CHECKING:
    from torch import Tensor, nn

    from convattn.data import SampleImages

KERNELS = (None, 3, 5, 7)
"""Windows of the convolutions; None leaves as many taps to each layer as it needs."""


def show_network(folder: Path, source: Path) -> TrainedNetwork:
    """Runs the trained network in a folder on the embedded images, draws its heads, and converts it both ways.

    The convolutions with as many taps as each layer needs are saved in `folder`.
    """
    from convattn.analysis import head_moves, read_heads
    from convattn.data import load_samples, normalise
    from convattn.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD
    from convattn.models.pretrained import CARD
    from convattn.networks import load_network, save_network
    from convattn.networks.scores import class_scores

    card = PretrainedCard.load(source / CARD)
    network, samples = load_network(source), load_samples()
    images = normalise(samples.split.images, CIFAR10_MEAN, CIFAR10_STD)
    seen = class_scores(network, images).argmax(1).tolist()
    pictures = _draw_images(folder / "images.png", samples, seen)
    heads = head_moves(folder / "heads.png", read_heads(source))
    made = [_as_convolutions(network, kernel, images, samples.split.labels) for kernel in KERNELS]
    own, certificate = made[0]
    save_network(own, folder / "as-convolutions", certificate=certificate)
    return TrainedNetwork(
        card=card,
        labels=tuple(samples.split.labels.tolist()),
        seen=tuple(seen),
        classes=samples.classes,
        conversions=tuple(NetworkConversion(kernel, item) for kernel, (_, item) in zip(KERNELS, made, strict=True)),
        back=_as_attention(own, images),
        images=pictures.name,
        heads=heads.name,
        credit=samples.credit,
    )


def _as_convolutions(
    network: "nn.Module", kernel: int | None, images: "Tensor", labels: "Tensor"
) -> tuple["nn.Module", NetworkCertificate]:
    """Converts the network to convolutions with a window of `kernel` x `kernel`."""
    from convattn.convert import network_to_conv

    made, certificate = network_to_conv(network, kernel_size=kernel, images=images, labels=labels, fold=False)
    return made, replace(certificate, images=_images_in_words(len(images)))


def _as_attention(network: "nn.Module", images: "Tensor") -> NetworkCertificate:
    """Converts a network of convolutions to attention with hard heads."""
    from convattn.convert import network_to_attention

    _, certificate = network_to_attention(network, images=images)
    return replace(certificate, images=_images_in_words(len(images)))


def _images_in_words(count: int) -> str:
    return f"{counted(count, 'test image')} of CIFAR-10"


def _draw_images(path: Path, samples: "SampleImages", seen: list[int]) -> Path:
    """Draws the images with their classes, and with those that the network gives them."""
    from einops import rearrange

    from convattn.analysis import ClassifiedImages, classified_images

    pixels = rearrange(samples.split.images, "images channels rows cols -> images rows cols channels").numpy()
    shown = [samples.classes[label] for label in samples.split.labels.tolist()]
    return classified_images(path, ClassifiedImages(pixels, shown, [samples.classes[number] for number in seen]))
