"""Files of a data set on the Hugging Face Hub, checked against the hash that the Hub states for them."""

import re
from pathlib import Path

from huggingface_hub import hf_hub_download

from convattn.errors import DataError
from convattn.files import file_sha256

_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_from_hub(repository: str, files: dict[str, str]) -> tuple[dict[str, Path], str]:
    """Fetches files of a data set into the Hub's cache, unless they are there, and checks their content.

    `files` gives each path inside the repository a name. Returns the local paths by these names, and where they came
    from in words. The cache names each large file by the SHA-256 that the Hub states for it, so that the check needs
    no connection; a file that cannot be fetched or fails the check raises DataError.
    """
    paths = {}
    for name, file in files.items():
        try:
            paths[name] = Path(hf_hub_download(repository, file, repo_type="dataset"))
        except OSError as error:
            raise DataError(
                f"cannot fetch {file} of {repository} from the Hub ({type(error).__name__}: {error}); "
                f"give a local folder that holds {' and '.join(Path(item).name for item in files.values())} instead"
            ) from None
        _check_content(paths[name])
    revisions = sorted(
        {path.parents[file.count("/")].name for path, file in zip(paths.values(), files.values(), strict=True)}
    )
    return paths, f"Hugging Face Hub, {repository}, revision {' and '.join(revisions)}"


def _check_content(path: Path) -> None:
    """Compares the SHA-256 of a cached file with its name in the cache."""
    stated, found = path.resolve().name, file_sha256(path)
    if not _SHA256.fullmatch(stated):
        raise DataError(
            f"{path}: the Hub's cache states no SHA-256 for it; give the folder of a copy that you trust instead"
        )
    if stated != found:
        raise DataError(
            f"{path}: the Hub states SHA-256 {stated}, but the content has {found}; delete the file and fetch it again"
        )
