"""Images for a network: read from files, prepared as it was trained, or taken from the package."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ArgumentError, DataError, MissingDependencyError, require
from convattn.networks.datasets import CIFAR10_MEAN, CIFAR10_STD, load_digits, load_samples
from convattn.networks.loading import LoadedNetwork
from convattn.networks.pictures import (
    ENDINGS,
    PREPARATION,
    Preparation,
    normalise,
    picture_files,
    pillow,
    read_picture,
)
from convattn.networks.source import (
    split_source,
    timm_preparation,
    torchvision_preparation,
    transformers_preparation,
)
from convattn.random_numbers import draw_image

Prepare = Callable[[Any], Tensor]
"""Turns an RGB picture of pillow into a tensor."""

Colour = tuple[float, ...]
"""One number per channel."""

_CHANNELS = (1, 3)
"""Channels of an array of pictures: grey, or colours."""


def preparation(loaded: LoadedNetwork) -> Prepare:
    """Returns the function that turns an RGB picture of pillow into the input of a network.

    timm, torchvision and transformers define the preparation for their networks; for a network that this library
    trained, the files in its folder do. A mean and a standard deviation that the user has given replace all that.
    Raises ArgumentError if the preparation is unknown, and MissingDependencyError if the network was trained on digits
    and scikit-learn is not installed.
    """
    source, network, folder, colours = loaded.source, loaded.network, loaded.folder, loaded.colours
    if colours is not None:
        return Preparation(_side(network), *colours)
    own = _own_preparation(folder)
    if own is not None:
        return own
    data = trained_on(folder)
    if data == "cifar10":
        return Preparation(32, CIFAR10_MEAN, CIFAR10_STD)
    if data == "digits":
        digits = load_digits()
        return Preparation(digits.image_shape[1], digits.mean, digits.std)
    home, name = split_source(source) if source else ("", "")
    if home == "timm":
        return timm_preparation(network)
    prepare = None
    if home == "torchvision":
        prepare = torchvision_preparation(name)
    if home == "hf":
        prepare = transformers_preparation(name)
    if prepare is not None:
        return prepare
    size = (len(draw_image(network)[0]), _side(network), _side(network))
    raise ArgumentError(
        f"nothing says how pictures are prepared for this {type(network).__name__}: give --mean and --std of the"
        " channels, with which it was trained, in units of the full range [0, 1]; or prepare them yourself, as an array"
        f" (.npy) of float32, normalised, of shape (images, {', '.join(map(str, size))})"
    )


def _own_preparation(folder: Path | None) -> Preparation | None:
    """Returns how pictures are prepared for a network that was trained on a user's images."""
    if folder is None or not (folder / PREPARATION).is_file():
        return None
    return Preparation.load(folder / PREPARATION)


def _side(network: nn.Module) -> int:
    """Returns how many rows and columns the images of a network have, as far as it says so."""
    size = getattr(getattr(network, "config", None), "image_size", None)
    if size is None:
        return draw_image(network).shape[-1]
    return int(size if isinstance(size, int) else max(size))


def normalisation(loaded: LoadedNetwork) -> tuple[Colour, Colour] | None:
    """Returns the mean and the standard deviation with which pictures are normalised, of pixels in [0, 1].

    Returns None if the preparation of the network's pictures is unknown or does not give them.
    """
    try:
        prepare = preparation(loaded)
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
            return self._prepare(read_picture(source))
        return self._prepare(pillow().Image.fromarray(np.ascontiguousarray(source)))


def open_images(
    path: Path, prepare: Callable[[], Prepare], *, limit: int | None = None
) -> Sequence[Tensor] | Tensor:
    """Opens pictures, or an array of numpy.

    Args:
        path: A folder of pictures, one picture, or a file that ends in .npy: bytes (images, rows, cols, 3), (images, 3,
            rows, cols) or (images, rows, cols) are pictures, whole numbers (texts, length) are token ids, and
            floating-point numbers are what the network takes.
        prepare: Returns how pictures are prepared; called only if there are any.
        limit: How many to take, in the order of their names or rows; None takes all.

    Returns:
        The images; pictures are read when they are asked for.

    Raises:
        ArgumentError: There is nothing at the path, or a file of another ending.
        DataError: The file is damaged, or holds something else or nothing.
    """
    ending = path.suffix.lower()
    if path.is_dir() or ending in ENDINGS:
        files = picture_files(path)[:limit]
        return Pictures([file.name for file in files], files, prepare())
    is_array = path.is_file() and ending == ".npy"
    require(is_array, "images", "a folder of pictures, a picture or a .npy file", str(path))
    array = _read_array(path)
    pictures = _as_pictures(array, path)
    if pictures is not None:
        sources = list(pictures[:limit])
        names = [f"{path.name}, image {row}" for row in range(len(sources))]
        return Pictures(names, sources, prepare())
    kind = np.float32 if array.dtype.kind == "f" else np.int64
    with np.errstate(over="ignore"):
        cast = array[:limit].astype(kind)
    if not np.isfinite(cast).all():
        raise DataError(f"{path} must hold finite numbers of {np.dtype(kind)}")
    return torch.from_numpy(cast)


def open_for(loaded: LoadedNetwork, path: Path, limit: int) -> Sequence[Tensor] | Tensor:
    """Opens images for a network, as `open_images`; a mean and a deviation are refused for what is no picture."""
    images = open_images(path, partial(preparation, loaded), limit=limit)
    if not isinstance(images, Pictures):
        require_no_colours(loaded, f"{path} holds what the network takes")
    return images


def require_no_colours(loaded: LoadedNetwork, reason: str) -> None:
    """Raises ArgumentError if a mean and a deviation were given, which would have no effect."""
    if loaded.colours is not None:
        raise ArgumentError(f"--mean and --std are for pictures, but {reason}")


def _as_pictures(array: np.ndarray, path: Path) -> np.ndarray | None:
    """Returns bytes of pictures as (images, rows, cols, 3), whichever way they lie; None for what is no pictures.

    Raises DataError for numbers of pictures that the network would take for something else.
    """
    shape = array.shape
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        if array.ndim == 3 and shape[2] in _CHANNELS:
            raise DataError(
                f"{path} of shape {shape} may be one picture or several: give it as array[None] or array[..., None]"
            )
        if array.ndim == 3:
            array = array[..., None]
        elif shape[3] not in _CHANNELS and shape[1] in _CHANNELS:
            array = np.moveaxis(array, 1, 3)
        if array.shape[3] in _CHANNELS:
            return np.broadcast_to(array, (*array.shape[:3], 3))
    if array.ndim != 4:
        return None
    if array.dtype.kind != "f":
        raise DataError(
            f"{path} holds {array.dtype} of shape {shape}: pictures in an array are bytes (uint8) of shape (images,"
            " rows, cols, 3), (images, 3, rows, cols) or (images, rows, cols)"
        )
    if shape[3] in _CHANNELS and shape[1] not in _CHANNELS:
        raise DataError(
            f"{path} holds {array.dtype} of shape {shape}, with channels last: networks take them first; save"
            " array.transpose(0, 3, 1, 2), normalised as the network was trained"
        )
    return None


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
    """Images for a network: a user's, or a few test images of the data that it was trained on."""

    prepared: Float[Tensor, "images channels rows cols"]  # What the network takes, on its device
    names: tuple[str, ...]
    labels: tuple[str, ...]  # What each shows; () if unknown
    what: str  # Their source, in words


def read_images(path: Path, loaded: LoadedNetwork, limit: int) -> OwnImages:
    """Reads the images at a path, prepared for a network; `open_images` says what they are."""
    images = open_for(loaded, path, limit)
    prepared = stack_images(images, path)
    names = tuple(f"image {number + 1}" for number in range(len(prepared)))
    if isinstance(images, Pictures):
        names = images.names
    return OwnImages(_as_input(prepared, loaded.network), names, (), path.resolve().name)


def _as_input(images: Tensor, network: nn.Module) -> Tensor:
    """Returns images on the device and in the dtype of a network."""
    return images.to(next(network.parameters()))


def own_images(loaded: LoadedNetwork, limit: int) -> OwnImages | None:
    """Returns test images of the data that a network was trained on, of CIFAR-10 or digits, on its device.

    They are in the order of the test set; of CIFAR-10 there are two of each class, from as many classes as the limit
    lets. Returns None if the network was not trained on either, or its data are unknown. Raises MissingDependencyError
    if scikit-learn, which has the digits, or pillow is not installed.
    """
    data = trained_on(loaded.folder)
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
    require_no_colours(loaded, f"{what} comes with its own")
    classes = class_names(loaded.folder)
    labels = tuple(classes[label] for label in split.labels[places].tolist())
    names = tuple(f"test image {rows[place]}" for place in places)
    prepared = normalise(split.images[places], mean, std)
    return OwnImages(_as_input(prepared, loaded.network), names, labels, what)


def require_own_images(loaded: LoadedNetwork, title: str, limit: int) -> OwnImages:
    """Returns `own_images`; raises ArgumentError, with the network's title, if its data are unknown."""
    images = own_images(loaded, limit)
    if images is None:
        data = trained_on(loaded.folder)
        instead = "" if data is None else f", but on {data}"
        raise ArgumentError(
            f"images must be given: {title} is not known to be trained on CIFAR-10 or digits{instead}"
        )
    return images


def class_names(folder: Path | None) -> tuple[str, ...]:
    """Returns the names of the classes of the data that a network in a folder was trained on; () if unknown."""
    own = _own_preparation(folder)
    if own is not None:
        return own.classes
    data = trained_on(folder)
    if data == "digits":
        return tuple(map(str, range(10)))
    if data == "cifar10":
        return load_samples().classes
    return ()
