"""Images for a network: read from files, prepared as it was trained, or taken from the package."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.network_runs import draw_image
from convattn.errors import (
    ArgumentError,
    DataError,
    MissingDependencyError,
    must_be,
    optional_module,
)
from convattn.models.classifier import ImageClassifier
from convattn.networks.datasets import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    load_digits,
    load_samples,
    normalise,
)
from convattn.networks.source import (
    split_source,
    timm_preparation,
    torchvision_preparation,
    transformers_preparation,
)

Prepare = Callable[[Any], Tensor]
"""Turns an RGB picture of pillow into a tensor."""

Colour = tuple[float, ...]
"""One number per channel."""

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of files that are read as pictures."""


def preparation(source: str | None, network: nn.Module, folder: Path | None = None) -> Prepare:
    """Returns the function that turns an RGB picture of pillow into the input of a network.

    timm, torchvision and transformers define the preparation for their networks; for a network that this library
    trained on CIFAR-10 or digits, the record in its folder does. Raises ArgumentError if the preparation is unknown,
    and MissingDependencyError if the network was trained on digits and scikit-learn is not installed.
    """
    data = trained_on(folder)
    if data == "cifar10":
        return _AsTrained("RGB", 32, CIFAR10_MEAN, CIFAR10_STD)
    if data == "digits":
        digits = load_digits()
        return _AsTrained("L", digits.image_shape[1], digits.mean, digits.std)
    home, name = split_source(source) if source else ("", "")
    if home == "timm":
        return timm_preparation(network)
    if home == "torchvision":
        return torchvision_preparation(name)
    if home == "hf":
        return transformers_preparation(name)
    raise ArgumentError(
        f"pictures cannot be prepared for this {type(network).__name__}: only timm, torchvision, hf: and the folder of"
        " a network trained on CIFAR-10 or digits say how; prepare them yourself, in an array (.npy) or from Python"
    )


@dataclass(frozen=True)
class _AsTrained:
    """Prepares a picture like the training images of a network of this library."""

    mode: str  # of pillow: colours, or levels of grey
    size: int  # pixels along each axis
    mean: Colour
    std: Colour

    def __call__(self, picture: Any) -> Tensor:
        small = picture.convert(self.mode)
        sizes = (self.size, self.size)
        if small.size != sizes:
            small = small.resize(sizes, _pillow().Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(small)).reshape(*sizes, -1)
        image = pixels.movedim(2, 0).contiguous()
        return normalise(image[None], self.mean, self.std)[0]


def normalisation(
    source: str | None, network: nn.Module, folder: Path | None
) -> tuple[Colour, Colour] | None:
    """Returns the mean and the standard deviation with which pictures are normalised, of pixels in [0, 1].

    Returns None if the preparation of the network's pictures is unknown or does not give them.
    """
    try:
        prepare = preparation(source, network, folder)
    except (ArgumentError, MissingDependencyError):
        return None
    chain = getattr(prepare, "transforms", ())
    for step in (prepare, *reversed(chain)):
        mean, std = getattr(step, "mean", None), getattr(step, "std", None)
        if mean is not None and std is not None:
            return tuple(map(float, mean)), tuple(map(float, std))
    return None


def trained_on(folder: Path | None) -> str | None:
    """Returns the name of the data that a network in a folder was trained on; None if it is unknown."""
    if folder is None:
        return None
    for file in (folder / "card.json", folder / "record.json"):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            run = content.get("run", content)
            return str(run["data"]["name"]).partition(" (")[0]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return None


def draw_images(
    network: nn.Module, shape: tuple[int, ...] | None = None
) -> Float[Tensor, "images *sizes"]:
    """Draws one image of standard normal numbers in the network's dtype; `shape` leaves out the batch.

    Without a shape this is the size in `network.default_cfg`, for networks of this library the size that they were made
    for, or else 3 x 224 x 224.
    """
    if shape is None and isinstance(network, ImageClassifier):
        size = network.arguments.get("image_size", 32)
        shape = (network.arguments.get("in_channels", 3), size, size)
    return draw_image(network, shape)


@final
class Pictures(Sequence[Tensor]):
    """Pictures that are read and prepared one by one."""

    def __init__(
        self, names: Sequence[str], sources: Sequence[Path | np.ndarray], prepare: Prepare
    ) -> None:
        """Takes the name of each picture, and its file or its pixels, (rows, cols, 3) bytes."""
        self.names = tuple(names)
        self._sources = sources
        self._prepare = prepare

    def __len__(self) -> int:
        """Returns the number of pictures."""
        return len(self.names)

    def __getitem__(self, number: Any) -> Any:
        """Returns a prepared picture; one that cannot be read raises DataError."""
        source = self._sources[number]
        if isinstance(source, Path):
            return self._prepare(_read_picture(source))
        return self._prepare(_pillow().fromarray(np.ascontiguousarray(source)))


def open_images(
    path: Path, prepare: Callable[[], Prepare], *, limit: int | None = None
) -> Sequence[Tensor] | Tensor:
    """Opens a folder of pictures, or an array of numpy.

    Args:
        path: A folder, or a file that ends in .npy: (images, rows, cols, 3) of bytes are pictures, other whole numbers
            (texts, length) are token ids, and floating-point numbers are what the network takes.
        prepare: Returns how pictures are prepared; called only if there are any.
        limit: How many to take, in the order of their names or rows; None takes all.

    Returns:
        The images; pictures are read when they are asked for.

    Raises:
        ArgumentError: There is nothing at the path, or a file of another ending.
        DataError: The file is damaged, or holds something else or nothing.
    """
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.suffix.lower() in ENDINGS]
        if not files:
            raise DataError(f"{path} holds no images ({', '.join(sorted(ENDINGS))})")
        files = sorted(files)[:limit]
        return Pictures([file.name for file in files], files, prepare())
    if not path.is_file() or path.suffix.lower() != ".npy":
        raise ArgumentError(must_be("images", "a folder or a .npy file", str(path)))
    array = _read_array(path)[:limit]
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] == 3:
        names = [f"{path.name}, image {row}" for row in range(len(array))]
        return Pictures(names, list(array), prepare())
    kind = np.float32 if array.dtype.kind == "f" else np.int64
    with np.errstate(over="ignore"):  # infinite numbers are refused later
        return torch.from_numpy(array.astype(kind))


def stack_images(
    images: Sequence[Tensor] | Tensor, path: Path
) -> Float[Tensor, "images channels rows cols"]:
    """Returns opened images as one batch; raises ArgumentError if they differ in size or are no images."""
    tensors = list(images)
    if tensors[0].ndim != 3 or not tensors[0].is_floating_point():
        shape = tuple(tensors[0].shape)
        raise ArgumentError(f"images must be images, but {path} holds tensors of shape {shape}")
    if len({tensor.shape for tensor in tensors}) > 1:
        raise ArgumentError(
            f"the images in {path} have different sizes when prepared for this network"
        )
    return torch.stack(tensors)


def _pillow() -> Any:
    return optional_module("PIL.Image", "pillow", "pictures").Image


def _read_picture(file: Path) -> Any:
    """Reads the first picture of a file, upright and in colours."""
    image = _pillow()
    operations = optional_module("PIL.ImageOps", "pillow", "pictures").ImageOps
    try:
        with image.open(file) as picture:
            return operations.exif_transpose(picture).convert("RGB")
    except Exception as error:  # noqa: BLE001 - decoders raise errors of every kind on damaged files
        raise DataError(f"cannot read the image {file}: {type(error).__name__}: {error}") from None


def _read_array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # noqa: BLE001 - numpy may fail in any way on a damaged file
        raise DataError(f"{path}: not a readable array of numpy ({error})") from None
    if array.ndim < 2 or array.size == 0 or array.dtype.kind not in "fiu":
        raise DataError(
            f"{path} must hold numbers of at least one image, but is {array.dtype} of shape {array.shape}"
        )
    return array


@dataclass(frozen=True, eq=False)
class OwnImages:
    """A few test images of the data that a network was trained on."""

    prepared: Float[Tensor, "images channels rows cols"]  # What the network takes
    names: tuple[str, ...]
    labels: tuple[str, ...]  # What each shows
    what: str  # Their source, in words


def own_images(folder: Path | None, limit: int) -> OwnImages | None:
    """Returns test images of the data that the network in a folder was trained on: of CIFAR-10, or digits.

    They are in the order of the test set; of CIFAR-10 there are two of each class, from as many classes as the limit
    lets. Returns None if the network was not trained on either, or its data are unknown. Raises MissingDependencyError
    if scikit-learn, which has the digits, or pillow is not installed.
    """
    data = trained_on(folder)
    if data == "cifar10":
        samples = load_samples()
        split, rows, mean, std = samples.split, samples.rows, CIFAR10_MEAN, CIFAR10_STD
        first, second = range(0, len(rows), 2), range(1, len(rows), 2)
        places = sorted([*first, *second][:limit])
        what = "the test set of CIFAR-10"
    elif data == "digits":
        digits = load_digits()
        split, rows, mean, std = digits.test, range(len(digits.test)), digits.mean, digits.std
        places = list(rows[:limit])
        what = "the test set of digits"
    else:
        return None
    classes = class_names(data)
    labels = tuple(classes[label] for label in split.labels[places].tolist())
    names = tuple(f"test image {rows[place]}" for place in places)
    return OwnImages(normalise(split.images[places], mean, std), names, labels, what)


def require_own_images(folder: Path | None, title: str, limit: int) -> OwnImages:
    """Returns `own_images`; raises ArgumentError, with the network's title, if its data are unknown."""
    images = own_images(folder, limit)
    if images is None:
        raise ArgumentError(
            f"images must be given: {title} is not known to be trained on CIFAR-10 or digits"
        )
    return images


def class_names(data: str | None) -> tuple[str, ...]:
    """Returns the names of the classes of the data that a network was trained on; () where they are unknown."""
    if data == "digits":
        return tuple(map(str, range(10)))
    if data == "cifar10":
        return load_samples().classes
    return ()
