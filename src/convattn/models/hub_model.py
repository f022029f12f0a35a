"""Saving and loading of networks, in a folder or on the Hugging Face Hub."""

import copy
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, cast

import huggingface_hub
import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from convattn.errors import ArgumentError, CheckpointError, UnknownNameError, UnsupportedModelError, without_trace
from convattn.files import as_path, new_files, new_folder
from convattn.provenance import RunRecord
from convattn.record import Record
from convattn.sealed import CERTIFICATE, CONFIG, WEIGHTS, read_sealed, require_sizes, write_sealed
from convattn.wording import some


@dataclass(frozen=True)
class PretrainedCard(Record):
    """What is known of a trained network that comes with the library: `card.json` in its folder."""

    name: str  # Its name, and that of its folder
    task: str  # What it was trained for, in a few words
    file_dtype: str  # Dtype of the floating-point tensors in the file, to which the run's weights were rounded
    dtype: str  # Dtype in which they are loaded
    bytes: int  # Size of model.safetensors
    accuracy: float  # Share of the test images that the network in the file classifies correctly, in [0, 1]
    views_accuracy: float | None  # The same from several views of each image; None where the run took one view
    tested: int  # Number of test images
    sample_classes: tuple[int, ...]  # Class that it gives to each embedded CIFAR-10 image; empty for other data
    command: str  # Command that made the folder from that of the run
    revision: str | None  # Revision of the code that made the folder
    run: RunRecord  # The training run

    def summary(self) -> str:
        """Returns the task, the accuracy and the size in one line of plain text."""
        size = f"{self.bytes / 1024:,.0f} KiB"
        return f"{self.task}: test accuracy {self.accuracy:.2%}, {self.run.parameters:,} trainable parameters, {size}"


@dataclass(frozen=True)
class FlopCount:
    """Floating-point operations of one forward pass on one image; a multiplication and its addition count as two.

    Only matrix products are counted: not the softmax, the normalisations, the biases or the activations. Mixing is
    counted as in the paper, with N x N weights per head; layers on a cheaper path take fewer.
    """

    linear: int  # Linear maps of channels, the heads' value matrices and convolutions included
    mixing: int = 0  # Weighted means of pixels, A_h x
    content_scores: int = 0  # Products of queries and keys, q·k
    position_scores: int = 0  # Products of queries and relative positions, q·r_δ

    @property
    def total(self) -> int:
        """All of them together."""
        return self.linear + self.mixing + self.content_scores + self.position_scores


def matmul_flops(rows: int, inner: int, cols: int) -> int:
    """Returns the operations of a (rows x inner) by (inner x cols) matrix product, ``2 · rows · inner · cols``.

    Example:
        >>> matmul_flops(2, 3, 5)
        60
    """
    return 2 * rows * inner * cols


_HOME = "convattn:"
CARD = "card.json"
"""File of the folder of a trained network that holds its `PretrainedCard`."""


def pretrained_names() -> list[str]:
    """Returns the names of the trained networks that come with the package, sorted."""
    folder = _folder()
    return sorted(item.name for item in folder.iterdir() if (item / CONFIG).is_file()) if folder.is_dir() else []


def pretrained_card(name: str) -> PretrainedCard:
    """Reads what is known of a trained network that comes with the package."""
    return PretrainedCard.load(network_folder(f"{_HOME}{name}") / CARD)


def network_folder(value: str | os.PathLike[str], argument: str = "folder") -> Path:
    """Reads an argument that names the folder of a network, or as "convattn:NAME" a network of the package.

    What is no path raises ArgumentError, and a name that the package does not have UnknownNameError.

    Example:
        >>> network_folder("runs/first").as_posix()
        'runs/first'
    """
    path = as_path(value, argument)
    home, colon, name = str(path).partition(":")
    if home + colon != _HOME:
        return path
    if name not in pretrained_names():
        raise UnknownNameError("trained network", name, pretrained_names())
    return _folder() / name


def _folder() -> Path:
    return Path(str(resources.files("convattn") / "pretrained"))


def fetch(
    folder_or_repository: str | os.PathLike[str],
    *,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> Path:
    """Fetches the files of a saved network from the Hub; returns a local folder as it is.

    Args:
        folder_or_repository: Folder, "convattn:NAME" for a network of the package, or repository "owner/name" on the
            Hub.
        revision: Branch, tag or commit of the repository; None takes its main branch.
        cache_dir: Folder for downloads; None takes the Hub's own cache.
        force_download: Whether to download again what is in the cache.
        local_files_only: Whether to use the cache only, and download nothing.
        token: Token for the Hub; None takes the one stored by `hf auth login`.

    Returns:
        The folder.

    Raises:
        CheckpointError: The repository cannot be fetched.
        UnknownNameError: The package has no network of that name.
    """
    folder = network_folder(folder_or_repository, "folder_or_repository")
    if folder.is_dir():
        return folder
    repository = os.fspath(folder_or_repository)
    try:
        fetched = huggingface_hub.snapshot_download(
            repository,
            revision=revision,
            cache_dir=None if cache_dir is None else str(as_path(cache_dir, "cache_dir")),
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
            allow_patterns=[CONFIG, WEIGHTS, CERTIFICATE],
            library_name="convattn",
        )
    except (OSError, ValueError) as error:  # what the Hub's client raises is one or the other
        raise CheckpointError(
            f"{repository} is not a folder, and cannot be fetched from the Hub ({type(error).__name__}: {error})"
        ) from None
    return Path(fetched)


_Model = TypeVar("_Model", bound="HubModel")


class HubModel(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="convattn",
    license="apache-2.0",
    paper_url="https://arxiv.org/abs/1911.03584",
):
    """A network with `save_pretrained`, `from_pretrained` and `push_to_hub`.

    A saved network is ``model.safetensors`` (weights) and ``config.json`` (the constructor's arguments, the class under
    the key "architecture", and digests of all). Loading raises if anything was changed or the weights do not fit
    exactly; no weight is ever left random.
    """

    def save_pretrained(self, save_directory: str | os.PathLike[str], **options: Any) -> str | None:
        """Saves the network in a folder, which stays as it is if that fails.

        Args:
            save_directory: The folder; files of the same names are replaced one by one, except the card `README.md`.
            **options: Passed to `huggingface_hub.ModelHubMixin.save_pretrained`.

        Returns:
            The address of the commit if the network is also pushed to the Hub, otherwise None.

        Raises:
            ArgumentError: The folder is not a path, or is a file.
            UnsupportedModelError: The network could not be loaded again, or a tensor holds NaN.
            WriteError: The folder cannot be written, or the disk is full.
        """
        folder = as_path(save_directory, "save_directory")
        options = {"repo_id": folder.name, **options}
        if folder.is_dir():
            with new_files(folder, last=CONFIG, keep="README.md") as temporary:
                return super().save_pretrained(temporary, **options)
        with new_folder(folder, "save_directory") as temporary:
            return super().save_pretrained(temporary, **options)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        map_location: str | torch.device = "cpu",
        verify: bool = True,
        **arguments: Any,
    ) -> Any:
        """Loads a network from a folder or, if there is no such folder, from the Hub.

        Args:
            pretrained_model_name_or_path: Folder, "convattn:NAME" for a network that comes with the package, or
                repository "owner/name" on the Hub.
            force_download: Whether to download again what is in the cache.
            token: Token for the Hub; None takes the one stored by `hf auth login`.
            cache_dir: Folder for downloads; None takes the Hub's own cache.
            local_files_only: Whether to use the cache only, and download nothing.
            revision: Branch, tag or commit of the repository; None takes its main branch.
            map_location: Device of the network.
            verify: Whether to raise if files were changed after they were saved.
            **arguments: Arguments of the class, instead of the saved ones.

        Returns:
            The network, in evaluation mode.

        Raises:
            ArgumentError: The class does not take the arguments given here, or the package has no network of that name.
            CheckpointError: A file is missing, damaged or not what was saved, or the weights are not of this class.
        """
        folder = fetch(
            pretrained_model_name_or_path,
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
        )
        saved, tensors = read_sealed(folder, verify=verify)
        chosen = {name: value for name, value in saved.items() if name != "architecture"} | arguments
        require_sizes(saved, tensors, folder)
        try:
            with torch.device("meta"):  # where sizes that do not fit the tensors take no memory
                trial = cls(**chosen)
        except Exception as error:  # noqa: BLE001 - what was edited may fail in any way
            if arguments:
                raise ArgumentError(
                    f"{cls.__name__} does not take {arguments} with what {folder} says: {error}"
                ) from None
            raise CheckpointError(f"{folder} does not describe a {cls.__name__}: {without_trace(error)}") from None
        try:
            trial.load_state_dict(tensors, assign=True)
            network = cls(**chosen)
            network.load_state_dict(tensors)
        except RuntimeError as error:
            raise CheckpointError(f"{folder} does not hold the weights of this {cls.__name__}: {error}") from None
        return network.to(map_location).eval()

    def _copy(self: _Model, **arguments: Any) -> _Model:
        """Copies the network and gives the copy's configuration new arguments; the caller adapts its modules."""
        made = copy.deepcopy(self)
        made._hub_mixin_config = {**cast(dict[str, Any], self._hub_mixin_config), **arguments}
        return made

    def _save_pretrained(self, save_directory: Path) -> None:
        arguments = cast(dict[str, Any], self._hub_mixin_config)
        self._require_loadable(arguments)
        config = {"architecture": type(self).__name__, **arguments}
        try:
            write_sealed(save_directory, config, self.state_dict())
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"cannot save {type(self).__name__}: {error}") from None

    def _require_loadable(self, arguments: dict[str, Any]) -> None:
        """Raises if the network could not be loaded: its tensors must be those of a new one with its arguments."""
        with torch.device("meta"):
            plain = type(self)(**arguments)
        found, expected = ({name: item.shape for name, item in net.state_dict().items()} for net in (self, plain))
        differing = sorted({name for name, _ in found.items() ^ expected.items()})
        if differing:
            raise UnsupportedModelError(
                f"cannot save {type(self).__name__}: it would not load, because its layers are not those of its"
                f" arguments ({some(differing)}); convattn.save_network saves a converted network"
            )
