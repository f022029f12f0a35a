"""Sharing networks on the Hugging Face Hub."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
from torch import nn

from convattn.convert.certificate import Certificate, NetworkCertificate
from convattn.errors import ArgumentError
from convattn.files import as_path
from convattn.models import fetch
from convattn.networks.loading import load_network, saved_config
from convattn.networks.saving import save_network


def from_pretrained(
    folder_or_repository: str | os.PathLike[str],
    *,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    token: str | bool | None = None,
    verify: bool = True,
) -> nn.Module:
    """Loads a network from a folder or, if there is no such folder, from the Hugging Face Hub.

    Args:
        folder_or_repository: Folder, "convattn:NAME" for a network that comes with the package, or repository
            "owner/name" on the Hub.
        model: As in `load_network`.
        revision: Branch, tag or commit of the repository; None takes its main branch.
        cache_dir: Folder for downloads; None takes the Hub's own cache.
        force_download: Whether to download again what is in the cache.
        local_files_only: Whether to use the cache only, and download nothing.
        token: Token for the Hub; None takes the one stored by `hf auth login`.
        verify: As in `load_network`.

    Returns:
        The network on the CPU, in evaluation mode.

    Raises:
        CheckpointError: The repository cannot be fetched, or its files are not what was saved.
        ArgumentError: As in `load_network`.
        MissingDependencyError: timm or torchvision, where the architecture comes from, is not installed.
    """
    folder = fetch(
        folder_or_repository,
        revision=revision,
        cache_dir=cache_dir,
        force_download=force_download,
        local_files_only=local_files_only,
        token=token,
    )
    return load_network(folder, model=model, verify=verify)


def push_to_hub(  # noqa: PLR0913 - what a network is saved with, and what the Hub asks
    network: nn.Module | str | os.PathLike[str],
    repo_id: str,
    *,
    source: str | None = None,
    options: Mapping[str, Any] | None = None,
    certificate: NetworkCertificate | Certificate | None = None,
    same_weights: bool = True,
    commit_message: str = "Upload network by convattn",
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    create_pr: bool | None = None,
) -> str:
    """Uploads a network to the Hugging Face Hub, with its card.

    Args:
        network: The network, or a folder that `save_network` or `convattn convert` wrote.
        repo_id: Repository "owner/name"; it is created if it does not exist.
        source: As in `save_network`.
        options: As in `save_network`.
        certificate: As in `save_network`.
        same_weights: As in `save_network`.
        commit_message: Message of the commit.
        private: Whether a new repository is private; None takes the owner's default.
        token: Token for the Hub; None takes the one stored by `hf auth login`.
        branch: Branch to upload to; None means the main one.
        create_pr: Whether to open a pull request in place of a commit.

    Returns:
        The address of the commit.

    Raises:
        ArgumentError: A folder was given, and a source, options or a certificate beside it.
        UnsupportedModelError: The network would not come back as it is.
        CheckpointError: The folder holds no network.
    """
    with tempfile.TemporaryDirectory() as place:
        if isinstance(network, nn.Module):
            folder = save_network(
                network,
                Path(place) / "network",
                source=source,
                options=options,
                certificate=certificate,
                same_weights=same_weights,
            )
        else:
            folder = as_path(network, "network")
            saved_config(folder)
            if source is not None or options or certificate is not None:
                raise ArgumentError(f"source, options and certificate must be left out, because {folder} has its own")
        api = huggingface_hub.HfApi(token=token)
        repository = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
        return api.upload_folder(
            repo_id=repository,
            repo_type="model",
            folder_path=folder,
            commit_message=commit_message,
            revision=branch,
            create_pr=create_pr,
        )
