"""Writes files and folders that are either whole or not there, even if the disk is full or the process is killed.

Everything is written to a hidden folder beside its place, and renamed when it is complete. A lock on the hidden folder
shows that a process is using it. The lock ends with the process, so that the next one can remove what is left.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from convattn.errors import ArgumentError, CheckpointError, WriteError, must_be

_MARK = ".convattn"
"""Ending of the names of our hidden folders."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""Errors of a disk that cannot be written any more."""


def as_path(value: object, argument: str = "folder") -> Path:
    """Returns an argument of that name as a path; raises ArgumentError unless it is a path or text that can be one."""
    if (
        not isinstance(value, str | os.PathLike)
        or not isinstance(os.fspath(value), str)
        or "\0" in os.fspath(value)
    ):
        raise ArgumentError(must_be(argument, "a path", value))
    return Path(value)


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in lower-case hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Writes text (as UTF-8) or bytes to a file that is either whole or not there, and returns its path.

    Raises ArgumentError if its folder does not exist or it is a folder, and WriteError if it cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "note.txt", "whole").read_text()
        'whole'
    """
    with new_file(path) as file:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields where to write a file that appears when the block ends, in place of an older one, or not if it raises.

    The umask decides who may read it, whatever permissions the block gave it. Errors are those of `write_atomically`.
    """
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise ArgumentError(must_be("path", "a file in a folder that exists", str(path)))
    with _as_write_error(path), hidden_folder(path.parent, path.name) as hidden:
        file = hidden / path.name
        yield file
        file.chmod(hidden.stat().st_mode & 0o666)
        with file.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(file, path)


def require_new_folder(path: str | os.PathLike[str], argument: str = "folder") -> Path:
    """Returns the path of a folder to be made; raises ArgumentError unless it is empty, or absent and can be made.

    The message names the argument in which the path came. The current folder is refused: replacing it would leave the
    user's shell in a deleted one.
    """
    path = as_path(path, argument)
    try:
        if path.is_dir() and any(path.iterdir()):
            raise ArgumentError(f"{argument} must be new or empty, but {str(path)!r} is not empty")
        if path.is_dir() and path.samefile("."):
            raise ArgumentError(f"{argument} must not be the current folder: name a new one")
        if path.exists() and not path.is_dir():
            raise ArgumentError(f"{argument} must be a folder, but {str(path)!r} is a file")
        if not next(folder for folder in path.absolute().parents if folder.exists()).is_dir():
            raise ArgumentError(
                f"{argument} must be in a folder, but above {str(path)!r} is a file"
            )
    except OSError as error:
        raise ArgumentError(f"{argument} cannot be made: {error.strerror}: {str(path)!r}") from None
    return path


@contextmanager
def new_folder(
    path: str | os.PathLike[str], argument: str = "folder", *, replace: bool = False
) -> Iterator[Path]:
    """Yields a folder to be filled, which appears at the path when the block ends, or not at all if the block raises.

    Missing parents are made, and a link stands for its folder. Raises ArgumentError as `require_new_folder` does, and
    WriteError if the folder cannot be written. With `replace` a folder that is there is exchanged for the filled one in
    one step, and then removed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with new_folder(Path(place) / "made") as folder:
        ...         _ = write_atomically(folder / "note.txt", "all of it")
        ...     sorted(file.name for file in (Path(place) / "made").iterdir())
        ['note.txt']
    """
    path = as_path(path, argument) if replace else require_new_folder(path, argument)
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    with _as_write_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(path.parent)
        with hidden_folder(path.parent, path.name) as temporary:
            yield temporary
            (_exchange if replace else os.replace)(temporary, path)


def _exchange(made: Path, old: Path) -> None:
    """Exchanges two folders in one step: two would leave none at the place if the process is killed between them."""
    import ctypes

    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is None or swap(
        -100, os.fsencode(made), -100, os.fsencode(old), 2
    ):  # AT_FDCWD twice, RENAME_EXCHANGE
        reason = "there is no renameat2" if swap is None else os.strerror(ctypes.get_errno())
        raise WriteError(
            f"cannot replace {old} in one step ({reason}): remove it, or name a new folder"
        )


@contextmanager
def hidden_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yields a new hidden folder, which is removed when the block ends unless the block has renamed it."""
    while True:
        folder = parent / f".{name[:40]}.{os.urandom(4).hex()}{_MARK}"
        folder.mkdir()
        with suppress(
            FileNotFoundError
        ):  # until it is locked, another process may take it for a leftover
            opened = os.open(folder, os.O_RDONLY)
            with suppress(
                OSError
            ):  # on a file system without locks, folders of killed processes stay
                fcntl.flock(opened, fcntl.LOCK_EX)  # waits for a process that removes it
            if folder.exists():
                break
            os.close(opened)
    try:
        yield folder
    finally:
        os.close(opened)
        shutil.rmtree(folder, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Removes the hidden folders of killed processes from a folder; those of running processes stay."""
    for left in folder.glob(f".*.????????{_MARK}"):
        with suppress(OSError):
            opened = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _lock(opened):
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(opened)


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Locks an existing folder for this process by a file `.lock` in it; the lock ends with the process.

    Raises CheckpointError, which names the other process, if the folder is locked already.
    """
    file = folder / ".lock"
    opened = _open_locked(file)
    try:
        os.truncate(opened, 0)
        os.write(opened, f"process {os.getpid()} on {os.uname().nodename}".encode())
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(opened)


def _open_locked(file: Path) -> int:
    """Opens and locks a file, and makes it anew if its last owner removed it in between."""
    while True:
        opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        if not _lock(opened):
            owner = os.read(opened, 200).decode(errors="replace") or "another process"
            os.close(opened)
            raise CheckpointError(f"{file.parent} is in use by {owner}")
        if os.fstat(opened).st_nlink:
            return opened
        os.close(opened)


def _lock(opened: int) -> bool:
    """Locks an open file or folder for this process, and returns whether it was free."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _as_write_error(path: Path) -> Iterator[None]:
    """Raises WriteError in place of an OSError that says that the disk is full or the path cannot be written."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        failed = Path(os.fsdecode(error.filename or ""))
        ours = error.filename is not None and (
            failed in path.parents or failed.parent in (path, path.parent)
        )
        if error.errno in FULL or ours:
            raise WriteError(f"cannot write {path}: {error.strerror}") from None
        raise
