"""The Hugging Face Hub: folders of saved networks fetched and uploaded, and the front matter of their cards."""

import json
import os
from pathlib import Path
from typing import Any

from convattn.errors import CheckpointError, optional_module
from convattn.files import as_path
from convattn.models.pretrained import network_folder
from convattn.sealed import CERTIFICATE, CONFIG, WEIGHTS


def fetch(
    folder_or_repository: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Path:
    """Fetches the files of a saved network from the Hub; returns a local folder as it is.

    Args:
        folder_or_repository: Folder, "convattn:NAME" for a network of the package, or repository "owner/name" on the
            Hub.
        cache_dir: Folder for downloads; None takes the Hub's own cache.
        **options: Options of `huggingface_hub.snapshot_download`, as `from_pretrained` has them.

    Returns:
        The folder.

    Raises:
        CheckpointError: The repository cannot be fetched.
        UnknownNameError: The package has no network of that name.
        MissingDependencyError: There is no such folder, and huggingface-hub is not installed.
    """
    folder = network_folder(folder_or_repository, "folder_or_repository")
    if folder.is_dir():
        return folder
    repository = os.fspath(folder_or_repository)
    hub = optional_module("huggingface_hub", "huggingface-hub", "hub")
    try:
        fetched = hub.snapshot_download(
            repository,
            cache_dir=None if cache_dir is None else str(as_path(cache_dir, "cache_dir")),
            allow_patterns=[CONFIG, WEIGHTS, CERTIFICATE],
            library_name="convattn",
            **options,
        )
    except (OSError, ValueError) as error:  # what the Hub's client raises is one or the other
        raise CheckpointError(
            f"{repository} is not a folder, and cannot be fetched from the Hub ({type(error).__name__}: {error})"
        ) from None
    return Path(fetched)


def upload(
    folder: Path,
    repo_id: str,
    *,
    commit_message: str,
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    create_pr: bool | None = None,
) -> str:
    """Uploads a folder to a repository of the Hub, which is created if it does not exist.

    The options are those of `convattn.push_to_hub`. Returns the address of the commit. Raises MissingDependencyError if
    huggingface-hub is not installed.
    """
    api = optional_module("huggingface_hub", "huggingface-hub", "hub").HfApi(token=token)
    return api.upload_folder(
        repo_id=api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id,
        repo_type="model",
        folder_path=folder,
        commit_message=commit_message,
        revision=branch,
        create_pr=create_pr,
    )


def front_matter(**entries: str | list[str]) -> str:
    r"""Writes the head of a model card, as the Hub reads it; JSON text is YAML as well.

    Example:
        >>> print(front_matter(license="apache-2.0", tags=["a", "b"]))
        ---
        license: "apache-2.0"
        tags: ["a", "b"]
        ---
    """
    return "\n".join(["---", *(f"{name}: {json.dumps(value)}" for name, value in entries.items()), "---"])
