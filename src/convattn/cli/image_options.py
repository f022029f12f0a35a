"""The options that say on which images networks are compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from convattn.cli.output import Count, Sizes
from convattn.errors import ArgumentError, MissingDependencyError, must_be
from convattn.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

    from convattn.networks.loading import LoadedNetwork

_COUNT = 16
"""Default number of images."""


class ComparisonImages(NamedTuple):
    """Images on which networks are compared."""

    prepared: "Tensor"  # (images, channels, rows, cols)
    words: str  # What they are
    random: bool  # Whether they are random numbers


@Parameter(name="*")
@dataclass(frozen=True)
class ImageOptions:
    """On which images networks are compared.

    Attributes:
        path: Images on which to compare the networks: a folder of pictures, one picture, or a .npy file, as for
            `convattn analyze`. Without it networks that were trained on CIFAR-10 or digits are compared on test
            images, and others on one image of random numbers, where nothing is called close.
        limit: How many of the images to take, in the order of their names or rows. Default: 16.
        shape: Shape of an image of random numbers, to compare them on one, for instance 3,224,224. Default, where there
            are no other images: the network's own.
    """

    path: Annotated[Path | None, Parameter(name="--images")] = None
    limit: Count | None = None
    shape: Sizes | None = None

    def check(self) -> None:
        """Raises ArgumentError on a mistake in the options."""
        require_images(self.path)
        if self.shape is not None and (self.path is not None or self.limit is not None):
            raise ArgumentError(
                "--shape cannot be given with --images or --limit: it asks for one image of random numbers"
            )

    def read(self, loaded: "LoadedNetwork") -> ComparisonImages:
        """Reads the images, takes those of the network's own test set, or draws one."""
        from convattn.networks.images import own_images, read_images, require_no_colours
        from convattn.random_numbers import draw_image

        count, reason, images = self.limit or _COUNT, "", None
        if self.path is not None:
            images = read_images(self.path, loaded, count)
        elif self.shape is None:
            try:
                images = own_images(loaded, count)
            except MissingDependencyError as missing:
                reason = f", in place of test images: {missing}"
        if images is not None:
            words = f"{counted(len(images.prepared), 'image')} of {images.what}"
            return ComparisonImages(images.prepared, words, False)
        if self.limit is not None:
            raise ArgumentError(
                "--limit needs --images: it is the number of images to take from there"
            )
        require_no_colours(loaded, "random numbers are none")
        drawn = draw_image(loaded.network, self.shape)
        words = f"one standard normal image {tuple(drawn.shape)}, seed 0{reason}"
        return ComparisonImages(drawn, words, True)


DEFAULT_IMAGES = ImageOptions()
"""The options when none is given."""


def pictures_need(path: Path | None) -> tuple[str, ...]:
    """Returns the optional modules that read images: none for a file of numpy, which may hold numbers."""
    return () if path is not None and path.suffix.lower() == ".npy" else ("PIL",)


def require_images(path: Path | None, source: str = "") -> None:
    """Raises ArgumentError if `--images` is given and there is nothing, or left out for a network of another library.

    What a network of timm, torchvision or hf: was trained on does not come with it; the source is named to find that
    out before weights are fetched.
    """
    if path is not None and not path.exists():
        raise ArgumentError(must_be("--images", "a folder or a file that exists", str(path)))
    if path is None and source.startswith(("timm:", "torchvision:", "hf:")):
        raise ArgumentError(f"--images must be given for {source}")
