"""Images for a network: read from files, prepared as it was trained, or taken from the package."""

import io
import json
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.surgery import draw_image
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

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats of pillow that are read; its others have readers that are seldom used, some of which start programs."""

PIXELS = 120_000_000
"""Pixels of one file; decoding takes up to 16 bytes for each."""

_LONGEST = 100
"""Length over width: a network's preparation may scale the shorter side up to hundreds of pixels."""

_one_at_a_time = threading.Lock()


class PictureError(DataError):
    """A picture cannot be read: the file is not a picture, is damaged, or is larger than the limit."""

    def __init__(self, reason: Literal["none", "damaged", "large"], message: str) -> None:
        """Takes the reason and the message."""
        self.reason: Literal["none", "damaged", "large"] = reason
        super().__init__(message)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Lets the error cross from one process to another."""
        return type(self), (self.reason, str(self))


def decode_picture(file: Any) -> Any:
    """Returns the first picture of a file, as an RGB picture of pillow.

    It is upright where the file says how it was held, and transparent parts are white. The size is read from the file's
    head, before anything is decoded, and one picture is decoded at a time. Raises PictureError if the file is no
    picture of these formats, is damaged, or has more pixels.
    """
    pil = _pillow()
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of pillow, about large pictures and about odd but readable files
        try:
            with pil.Image.open(file, formats=FORMATS) as picture:
                _require_size(picture, PIXELS)
                return _colours(pil.ImageOps.exif_transpose(picture))
        except pil.UnidentifiedImageError:
            raise PictureError(
                "none", f"this is no picture that can be read ({', '.join(FORMATS)})"
            ) from None
        except pil.Image.DecompressionBombError:
            raise PictureError("large", f"the picture has more than {PIXELS:,} pixels") from None
        except (PictureError, FileNotFoundError, PermissionError):
            raise
        except Exception as error:  # noqa: BLE001 - decoders raise errors of every kind on damaged files
            raise PictureError(
                "damaged", f"the picture is damaged ({type(error).__name__}: {error})"
            ) from None


def _pillow() -> Any:
    """Imports pillow."""
    optional_module("PIL.ImageOps", "pillow", "pictures")
    return optional_module("PIL.Image", "pillow", "pictures")


def _require_size(picture: Any, pixels: int) -> None:
    width, height = picture.size
    if not (width and height):
        raise PictureError("damaged", f"the picture has {width} × {height} pixels")
    if width * height > pixels:
        raise PictureError(
            "large", f"the picture has {width} × {height} pixels; {pixels:,} may be read"
        )
    if max(width, height) > _LONGEST * min(width, height):
        raise PictureError(
            "large",
            f"the picture has {width} × {height} pixels; one side may be {_LONGEST} times as long as the other",
        )


def _colours(picture: Any) -> Any:
    """Makes a picture RGB: transparent parts become white, and grey of 16 bits becomes grey of 8."""
    if picture.mode == "F":
        raise PictureError(
            "none", "the picture has floating-point numbers, and the value of white is unknown"
        )
    if picture.mode.startswith("I"):
        # Pillow's own conversion takes every value above 255 for white.
        grey = np.asarray(picture)
        if grey.min() < 0 or grey.max() > 65_535:
            raise PictureError(
                "none", "the picture has numbers of 32 bits, and the value of white is unknown"
            )
        return (
            _pillow()
            .Image.fromarray(((grey.astype(np.uint32) + 128) // 257).astype(np.uint8))
            .convert("RGB")
        )
    if picture.has_transparency_data:
        image, whole = _pillow().Image, picture.convert("RGBA")
        picture = image.alpha_composite(image.new("RGBA", whole.size, "white"), whole)
    return picture.convert("RGB")


Prepare = Callable[[Any], Tensor]
"""Turns an RGB picture of pillow into a tensor."""

Colour = tuple[float, ...]
"""One number per channel."""


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
        small, sizes = picture.convert(self.mode), (self.size, self.size)
        if small.size != sizes:
            small = small.resize(sizes, _pillow().Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(small)).reshape(*sizes, -1).movedim(2, 0).contiguous()
        return normalise(pixels[None], self.mean, self.std)[0]


def trained_on(folder: Path | None) -> str | None:
    """Returns the name of the data that a network in a folder was trained on; None if it is unknown."""
    for file in () if folder is None else (folder / "card.json", folder / "record.json"):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return str((content.get("run") or content)["data"]["name"]).partition(" (")[0]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return None


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
    for step in (
        prepare,
        *reversed(getattr(prepare, "transforms", ())),
    ):  # the last one of a chain that has them
        mean, std = getattr(step, "mean", None), getattr(step, "std", None)
        if mean is not None and std is not None:
            return tuple(map(float, mean)), tuple(map(float, std))
    return None


def draw_images(
    network: nn.Module, shape: tuple[int, ...] | None = None
) -> Float[Tensor, "images *sizes"]:
    """Draws one image of standard normal numbers in the network's dtype; `shape` leaves out the batch.

    Without a shape this is the size in `network.default_cfg`, for networks of this library the size that they were made
    for, or else 3 x 224 x 224.
    """
    if shape is None and isinstance(network, ImageClassifier):
        shape = (
            network.arguments.get("in_channels", 3),
            *2 * (network.arguments.get("image_size", 32),),
        )
    return draw_image(network, shape)


ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of files that are read as pictures."""

_COLUMNS = ("image", "img")
"""Columns of a parquet file that hold pictures; the first one is taken."""


@final
class Pictures(Sequence[Tensor]):
    """Pictures that are decoded and prepared one by one."""

    def __init__(self, sources: Sequence[tuple[str, Callable[[], Any]]], prepare: Prepare) -> None:
        """Takes the name of each picture, for errors, with a function that returns it as an RGB picture of pillow."""
        self._sources, self._prepare = sources, prepare

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each picture: of its file, or where it is in a table."""
        return tuple(Path(name).name for name, _ in self._sources)

    def __len__(self) -> int:
        """Returns the number of pictures."""
        return len(self._sources)

    def __getitem__(self, number: Any) -> Any:
        """Returns a prepared picture; one that cannot be read raises DataError."""
        name, source = self._sources[number]
        try:
            picture = source()
        except (OSError, PictureError) as error:
            raise DataError(f"cannot read the image {name}: {error}") from None
        return self._prepare(picture)


def open_images(
    path: Path, prepare: Callable[[], Prepare], *, limit: int | None = None
) -> Sequence[Tensor] | Tensor:
    """Opens a folder of pictures, a parquet file of pictures, or an array of numpy.

    Args:
        path: A folder; a file that ends in .parquet, with a column image or img of pictures; or one that ends in .npy:
            (images, rows, cols, 3) of bytes are pictures, other whole numbers (texts, length) are token ids, and
            floating-point numbers are what the network takes.
        prepare: Returns how pictures are prepared; called only if there are any.
        limit: How many to take, in the order of their names or rows; None takes all.

    Returns:
        The images; pictures are decoded when they are asked for.

    Raises:
        ArgumentError: There is nothing at the path, or a file of another ending.
        DataError: The file is damaged, or holds something else or nothing.
    """
    if path.is_dir():
        files = sorted(
            file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file()
        )
        if not files:
            raise DataError(f"{path} holds no images ({', '.join(sorted(ENDINGS))})")
        return Pictures(
            [(str(file), partial(decode_picture, file)) for file in files[:limit]], prepare()
        )
    if not path.is_file() or path.suffix.lower() not in (".parquet", ".npy"):
        raise ArgumentError(must_be("--images", "a folder, a .parquet or a .npy file", str(path)))
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path, prepare, limit)
    return _read_array(path, prepare, limit)


def stack_images(
    opened: Sequence[Tensor] | Tensor, path: Path
) -> Float[Tensor, "images channels rows cols"]:
    """Returns opened images as one batch; raises ArgumentError if they differ in size or are no images."""
    made = list(opened)
    if made[0].ndim != 3 or not made[0].is_floating_point():
        raise ArgumentError(
            f"--images must hold images, but {path} holds tensors of shape {tuple(made[0].shape)}"
        )
    if len({tuple(image.shape) for image in made}) > 1:
        raise ArgumentError(
            f"the images in {path} have different sizes when prepared for this network"
        )
    return torch.stack(made)


def _read_parquet(path: Path, prepare: Callable[[], Prepare], limit: int | None) -> Pictures:
    pa = optional_module("pyarrow.parquet", "pyarrow", "parquet")
    try:
        names = pa.parquet.read_schema(path).names
        chosen = next((name for name in _COLUMNS if name in names), None)
        if chosen is None:
            raise DataError(
                f"{path} must have a column {' or '.join(_COLUMNS)}, but has {', '.join(names) or 'none'}"
            )
        rows = pa.parquet.read_table(path, columns=[chosen])[chosen].slice(0, limit).to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})") from None
    if not rows:
        raise DataError(f"{path} has no rows")
    encoded = [row.get("bytes") if isinstance(row, dict) else row for row in rows]
    return Pictures(
        [(f"{path}, row {row}", partial(_decode, data)) for row, data in enumerate(encoded)],
        prepare(),
    )


def _decode(data: Any) -> Any:
    if not isinstance(data, bytes):
        raise PictureError("none", f"no picture, but a {type(data).__name__}")
    return decode_picture(io.BytesIO(data))


def _read_array(
    path: Path, prepare: Callable[[], Prepare], limit: int | None
) -> Sequence[Tensor] | Tensor:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # noqa: BLE001 - numpy may fail in any way on a damaged file
        raise DataError(f"{path}: not a readable array of numpy ({error})") from None
    if array.ndim < 2 or array.size == 0 or array.dtype.kind not in "fiu":
        raise DataError(
            f"{path} must hold numbers of at least one image, but is {array.dtype} of shape {array.shape}"
        )
    array = array[:limit]
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] == 3:
        return Pictures(
            [
                (f"{path}, image {row}", partial(_picture, pixels))
                for row, pixels in enumerate(array)
            ],
            prepare(),
        )
    with np.errstate(over="ignore"):  # infinite numbers are refused later
        return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))


def _picture(pixels: np.ndarray) -> Any:
    picture = _pillow().Image.fromarray(np.ascontiguousarray(pixels))
    _require_size(picture, PIXELS)
    return picture


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
    """Returns `own_images`; raises ArgumentError, with the network's title, if its data are unknown."""
    found = own_images(folder, limit)
    if found is None:
        raise ArgumentError(
            f"--images must be given: {title} is not known to be trained on CIFAR-10 or digits"
        )
    return found


def class_names(data: str | None) -> tuple[str, ...]:
    """Returns the names of the classes of the data that a network was trained on; () where they are unknown."""
    if data == "digits":
        return tuple(map(str, range(10)))
    return load_samples().classes if data == "cifar10" else ()
