"""Saving and loading of networks, in a folder or on the Hugging Face Hub."""

import copy
import os
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from convattn.errors import ArgumentError, CheckpointError, UnsupportedModelError, without_trace
from convattn.files import as_path, new_files, new_folder
from convattn.models.fetch import fetch
from convattn.records.words import some
from convattn.sealed import CONFIG, read_sealed, require_sizes, write_sealed

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
