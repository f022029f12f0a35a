"""Files and folders that are either whole or not there."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convattn.errors import ArgumentError, must_be

__all__ = ["new_folder", "require_new_folder", "write_atomically"]


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Writes a file that is either whole or not there.

    Args:
        path: File to write; its folder must exist.
        content: Text (written as UTF-8) or bytes.

    Returns:
        The path written.

    Raises:
        ArgumentError: Its folder does not exist.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "note.txt", "whole").read_text()
        'whole'
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ArgumentError(must_be("path", "in a folder that exists", str(path)))
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def require_new_folder(path: str | os.PathLike[str], argument: str = "folder") -> Path:
    """Checks that a folder can be made: that nothing, or only an empty folder, has the name.

    Args:
        path: The folder to be made.
        argument: Name of the argument that the path came in, for the error.

    Returns:
        The path.

    Raises:
        ArgumentError: A file or a folder with contents is there.
    """
    path = Path(path)
    if path.is_dir() and any(path.iterdir()):
        raise ArgumentError(must_be(argument, "a folder that is new or empty", str(path)))
    if path.exists() and not path.is_dir():
        raise ArgumentError(must_be(argument, "a folder, not a file", str(path)))
    return path


@contextmanager
def new_folder(path: str | os.PathLike[str], argument: str = "folder") -> Iterator[Path]:
    """Makes a folder that appears with all its contents when the block ends, and not at all when the block raises.

    Args:
        path: The folder to make; parents are made where missing.
        argument: Name of the argument that the path came in, for the error.

    Yields:
        A temporary folder beside it, to be filled.

    Raises:
        ArgumentError: A file or a folder with contents is there already, or a parent is a file.

    Example:
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with new_folder(Path(place) / "made") as folder:
        ...         _ = write_atomically(folder / "note.txt", "all of it")
        ...     sorted(file.name for file in (Path(place) / "made").iterdir())
        ['note.txt']
    """
    path = require_new_folder(path, argument)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ArgumentError(must_be(argument, "a folder whose parents are folders", str(path))) from None
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        temporary.chmod(0o755)
        if path.exists():
            path.rmdir()
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
