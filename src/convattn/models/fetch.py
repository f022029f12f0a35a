"""Saved networks from the Hugging Face Hub."""

import os
from pathlib import Path

import huggingface_hub

from convattn.errors import CheckpointError
from convattn.files import as_path
from convattn.models.pretrained import network_folder
from convattn.sealed import CERTIFICATE, CONFIG, WEIGHTS


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
