"""Hashes that identify the data of a result."""

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in lower-case hexadecimal digits.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (file := Path(folder, "empty")).write_bytes(b"")
        ...     file_sha256(file)[:16]
        'e3b0c44298fc1c14'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
