"""Images for a network whose user gave none: of CIFAR-10, which come with this package, or digits of scikit-learn."""

from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from convattn.data import load_digits, load_samples, normalise
from convattn.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD
from convattn.errors import ArgumentError
from convattn.networks.preparation import trained_on


@dataclass(frozen=True, eq=False)
class OwnImages:
    """A few test images of the data that a network was trained on."""

    prepared: Float[Tensor, "images channels rows cols"]  # What the network takes
    names: tuple[str, ...]
    labels: tuple[str, ...]  # What each shows
    what: str  # Where they are from, in words


def own_images(folder: Path | None, limit: int) -> OwnImages | None:
    """Returns test images of the data that a network was trained on: of CIFAR-10, or digits.

    Args:
        folder: Its folder, or None.
        limit: How many images at most. Of CIFAR-10 there are two of each class.

    Returns:
        The images, in the order of the test set or of the classes, of as many classes as the limit lets; None where
        nothing says that it was trained on one of them.

    Raises:
        MissingDependencyError: It was trained on digits, and scikit-learn is not installed.
    """
    data = trained_on(folder)
    if data == "cifar10":
        samples = load_samples()
        places = sorted([*range(0, len(samples.rows), 2), *range(1, len(samples.rows), 2)][:limit])
        split, rows, mean, std = samples.split, samples.rows, CIFAR10_MEAN, CIFAR10_STD
        what = "the test set of CIFAR-10"
    elif data == "digits":
        digits = load_digits()
        split, rows, mean, std = digits.test, range(len(digits.test)), digits.mean, digits.std
        places, what = list(rows[:limit]), "the test set of digits"
    else:
        return None
    classes = class_names(data)
    labels = tuple(classes[label] for label in split.labels[places].tolist())
    names = tuple(f"test image {rows[place]}" for place in places)
    return OwnImages(normalise(split.images[places], mean, std), names, labels, what)


def require_own_images(folder: Path | None, title: str, limit: int) -> OwnImages:
    """Returns the same, or raises ArgumentError where nothing says what the network of that title was trained on."""
    found = own_images(folder, limit)
    if found is None:
        raise ArgumentError(f"--images must be given: nothing says that {title} was trained on CIFAR-10 or digits")
    return found


def class_names(data: str | None) -> tuple[str, ...]:
    """Returns the names of the classes of the data that a network was trained on; () where they are unknown."""
    if data == "digits":
        return tuple(map(str, range(10)))
    return load_samples().classes if data == "cifar10" else ()
