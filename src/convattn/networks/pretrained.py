"""Where saved networks are: trained ones that come with the package, and folders on the Hugging Face Hub."""

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from convattn.errors import (
    ArgumentError,
    CheckpointError,
    must_be,
    optional_module,
    require_name,
)
from convattn.files import AnyPath, as_path, folder_state
from convattn.provenance import RunRecord
from convattn.record import Record
from convattn.sealed import CERTIFICATE, CONFIG, WEIGHTS
from convattn.wording import some

_HOME = "convattn:"
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""A repository of the Hub, "owner/name"."""
CARD = "card.json"
"""File of the folder of a trained network that holds its `PretrainedCard`."""


@dataclass(frozen=True)
class PretrainedCard(Record):
    """Describes a trained network that comes with the library: `card.json` in its folder."""

    name: str  # Its name, and that of its folder
    task: str  # What it was trained for, in a few words
    file_dtype: str  # Dtype of the floating-point tensors in the file, to which the run's weights were rounded
    dtype: str  # Dtype in which they are loaded
    bytes: int  # Size of model.safetensors
    accuracy: float  # Share of the test images that the network in the file classifies correctly, in [0, 1]
    # The same from several views of each image; None where the run took one view
    views_accuracy: float | None
    tested: int  # Number of test images
    # Class that it gives to each embedded CIFAR-10 image; empty for other data
    sample_classes: tuple[int, ...]
    command: str  # Command that made the folder from that of the run
    revision: str | None  # Revision of the code that made the folder
    run: RunRecord  # The training run
    # How its settings were chosen, and on which images; None if that is not known
    settings: str | None

    def summary(self) -> str:
        """Returns the task, the accuracy and the size in one line of plain text."""
        size = f"{self.bytes / 1024:,.0f} KiB"
        return f"{self.task}: test accuracy {self.accuracy:.2%}, {self.run.parameters:,} trainable parameters, {size}"


def pretrained_names() -> list[str]:
    """Returns the names of the trained networks that come with the package, sorted."""
    return sorted(file.parent.name for file in _folder().glob(f"*/{CONFIG}"))


def pretrained_card(name: str) -> PretrainedCard:
    """Returns the card of a trained network of the package; raises UnknownNameError if it has none of that name."""
    return PretrainedCard.load(network_folder(f"{_HOME}{name}") / CARD)


def network_folder(value: AnyPath, argument: str = "folder") -> Path:
    """Returns the folder that a path or the name "convattn:NAME" of a trained network of the package stands for.

    Raises ArgumentError, which names the argument, unless the value is a path, and UnknownNameError if the package has
    no network of that name.

    Example:
        >>> network_folder("runs/first").as_posix()
        'runs/first'
    """
    path = as_path(value, argument)
    home, colon, name = str(path).partition(":")
    if home + colon != _HOME:
        return path
    require_name("trained network", name, pretrained_names())
    return _folder() / name


def _folder() -> Path:
    return Path(str(resources.files("convattn") / "pretrained"))


def fetch(source: AnyPath, *, cache_dir: AnyPath | None, **options: Any) -> Path:
    """Returns the folder of a network, fetched from the Hub where the source is "owner/name" and no folder here.

    Arguments and errors are those of `load_network`.
    """
    folder = network_folder(source, "source")
    if folder.is_file():
        raise CheckpointError(
            f"source must be a folder, but {folder} is a file: read one of torch.save by"
            " network.load_state_dict(torch.load(file, weights_only=True))"
        )
    if folder_state(folder) is not None:
        given = [name for name in ("revision", "force_download") if options.get(name)]
        if given:
            raise ArgumentError(f"{some(given)} must be left out: {str(source)!r} is a folder here")
        return folder
    if not (isinstance(source, str) and _REPOSITORY.fullmatch(source)):
        expected = 'a folder that exists, "convattn:NAME" or a repository "owner/name" of the Hub'
        raise CheckpointError(must_be("source", expected, str(source)))
    cache = None if cache_dir is None else str(as_path(cache_dir, "cache_dir"))
    hub = optional_module("huggingface_hub", "hub")
    try:
        fetched = hub.snapshot_download(
            source,
            cache_dir=cache,
            allow_patterns=[CONFIG, WEIGHTS, CERTIFICATE],
            library_name="convattn",
            **options,
        )
    except Exception as error:  # noqa: BLE001 - the Hub's client lets errors of the network through
        raise CheckpointError(
            f"{source} is not a folder, and cannot be fetched from the Hub ({type(error).__name__}: {error})"
        ) from None
    return Path(fetched)
