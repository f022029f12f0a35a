"""Writes files and folders that are either whole or not there, even if the disk is full or the process is killed."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from convattn.errors import ArgumentError, CheckpointError, WriteError, must_be

__all__ = [
    "FULL",
    "as_path",
    "clear_leftovers",
    "file_sha256",
    "hidden_folder",
    "new_file",
    "new_files",
    "new_folder",
    "require_new_folder",
    "sole_use",
    "write_atomically",
]

_MARK = ".convattn"
"""Ending of the names of our hidden folders."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""Errors of a disk that cannot be written any more."""


def as_path(value: object, argument: str = "folder") -> Path:
    """Reads an argument that names a file or a folder.

    Args:
        value: What the user gave.
        argument: Name of the argument, for the error.

    Returns:
        The path.

    Raises:
        ArgumentError: It is neither text nor a path, or holds a character that a path cannot.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str) or "\0" in os.fspath(value):
        raise ArgumentError(must_be(argument, "a path", value))
    return Path(value)


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Writes a file that is either whole or not there.

    Args:
        path: File to write; its folder must exist.
        content: Text (written as UTF-8) or bytes.

    Returns:
        The path written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "note.txt", "whole").read_text()
        'whole'
    """
    with new_file(path) as file:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


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


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Makes a file that appears, or takes the place of another, when the block ends, and not at all when it raises.

    The umask decides who may read it, whatever permissions the block gave it.

    Args:
        path: The file to make; its folder must exist.

    Yields:
        Where to write it.

    Raises:
        ArgumentError: Its folder does not exist.
        WriteError: It cannot be written.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ArgumentError(must_be("path", "in a folder that exists", str(path)))
    with _as_write_error(path), hidden_folder(path.parent, path.name) as hidden:
        file = hidden / path.name
        yield file
        file.chmod(hidden.stat().st_mode & 0o666)
        with file.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(file, path)


def require_new_folder(path: str | os.PathLike[str], argument: str = "folder") -> Path:
    """Raises unless a folder can be made: the path must not exist, or be an empty folder.

    Args:
        path: The folder to be made.
        argument: Name of the argument that the path came in, for the error.

    Returns:
        The path.

    Raises:
        ArgumentError: It is not a path, a file or a folder with contents is there, or it is the current folder.
    """
    path = as_path(path, argument)
    try:
        if path.is_dir() and any(path.iterdir()):
            raise ArgumentError(f"{argument} must be new or empty, but {str(path)!r} is not empty")
        if path.is_dir() and path.samefile("."):  # what replaces it would leave the user's shell in a deleted folder
            raise ArgumentError(f"{argument} must not be the current folder: name a new one")
        if path.exists() and not path.is_dir():
            raise ArgumentError(f"{argument} must be a folder, but {str(path)!r} is a file")
    except OSError as error:
        raise ArgumentError(f"{argument} cannot be made: {error.strerror}: {str(path)!r}") from None
    return path


@contextmanager
def new_folder(path: str | os.PathLike[str], argument: str = "folder") -> Iterator[Path]:
    """Makes a folder that appears with all its contents when the block ends, and not at all if the block raises.

    Args:
        path: The folder to make; parents are made where missing, and leftovers of killed processes beside it go.
        argument: Name of the argument that the path came in, for the error.

    Yields:
        A temporary folder beside it, to be filled.

    Raises:
        ArgumentError: A file or a folder with contents is there already, or a parent is a file.
        WriteError: The folder cannot be made, or the disk is full.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with new_folder(Path(place) / "made") as folder:
        ...         _ = write_atomically(folder / "note.txt", "all of it")
        ...     sorted(file.name for file in (Path(place) / "made").iterdir())
        ['note.txt']
    """
    path = require_new_folder(path, argument)
    with _as_write_error(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ArgumentError(f"{argument} must be in a folder, but above {str(path)!r} is a file") from None
        clear_leftovers(path.parent)
        with hidden_folder(path.parent, path.name) as temporary:
            yield temporary
            if path.exists():
                path.rmdir()
            os.replace(temporary, path)


@contextmanager
def new_files(folder: Path, last: str, keep: str) -> Iterator[Path]:
    """Makes files that appear in an existing folder when the block ends, and leaves it as it is when the block raises.

    Args:
        folder: The folder; files of the same names are replaced.
        last: The file that is moved last.
        keep: The file that is not replaced.

    Yields:
        A temporary folder, to be filled.

    Raises:
        WriteError: The folder cannot be written, or the disk is full.
    """
    with _as_write_error(folder):
        clear_leftovers(folder)
        with hidden_folder(folder, "new") as temporary:
            yield temporary
            for file in sorted(temporary.iterdir(), key=lambda file: file.name == last):
                if file.name != keep or not (folder / keep).exists():
                    os.replace(file, folder / file.name)


@contextmanager
def hidden_folder(parent: Path, name: str) -> Iterator[Path]:
    """Makes a hidden folder that is removed when the block ends; if the process is killed, at the next start.

    A lock on the folder shows that a process is using it; the lock ends with the process, however it dies.

    Args:
        parent: Where to make it.
        name: What it is for; a part of its name.

    Yields:
        The folder, which the block may rename.
    """
    folder = parent / f".{name[:40]}.{os.urandom(4).hex()}{_MARK}"
    folder.mkdir()
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: what is left there stays
            _lock(held)
        yield folder
    finally:
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Locks a folder for one process; the lock ends with the process, however it dies.

    Args:
        folder: An existing folder; the file `.lock` in it says which process uses it.

    Yields:
        Nothing.

    Raises:
        CheckpointError: Another process is using it; the message says which.
    """
    import socket

    held = _locked(folder / ".lock")
    try:
        os.truncate(held, 0)
        os.write(held, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        (folder / ".lock").unlink(missing_ok=True)
        os.close(held)


def _locked(file: Path) -> int:
    """Opens and locks a file; if its last owner has just removed it, it is created again."""
    while True:
        held = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        if not _lock(held):
            holder = os.read(held, 200).decode(errors="replace") or "another process"
            os.close(held)
            raise CheckpointError(f"{file.parent} is in use by {holder}")
        if os.fstat(held).st_nlink:
            return held
        os.close(held)


def _lock(held: int) -> bool:
    """Locks an open file or folder for this process; returns whether it was free."""
    from filelock import lock_descriptor  # here, because `--help` does without

    return lock_descriptor(held, blocking=False)


def clear_leftovers(folder: Path) -> None:
    """Removes hidden folders left by killed processes; those of running processes stay.

    Args:
        folder: Where to look, not deeper.
    """
    for left in folder.glob(f".*.????????{_MARK}"):
        with suppress(OSError):
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _lock(held):
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)


@contextmanager
def _as_write_error(path: Path) -> Iterator[None]:
    """Turns errors of the block into a WriteError if the disk is full or the place cannot be written."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        failed = Path(os.fsdecode(error.filename or ""))
        ours = error.filename is not None and (failed in path.parents or failed.parent in (path, path.parent))
        if error.errno in FULL or ours:
            raise WriteError(f"cannot write {path}: {error.strerror}") from None
        raise
