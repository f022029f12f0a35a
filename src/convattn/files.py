"""Writes files and folders that are either whole or not there, even if the disk is full or the process is killed.

Everything is written to a hidden folder beside its place, and renamed when it is complete. A lock beside the hidden
folder shows that a process is using it. The lock ends with the process, so that the next one can remove what is left,
and put back a folder that was to be replaced.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from glob import escape
from pathlib import Path
from time import sleep
from typing import TypeAlias, TypeVar

from filelock import FileLock, Timeout

from convattn.errors import ArgumentError, CheckpointError, WriteError, must_be, require

T = TypeVar("T")

AnyPath: TypeAlias = str | os.PathLike[str]
"""A path, as callers give it."""

_MARK = ".convattn"
"""Ending of the names of our hidden folders."""

_LOCK = ".lock"
"""Ending of the name of the lock of a hidden folder, and name of the lock in a folder of `sole_use`."""

_REPLACED = ".replaced"
"""In a hidden folder, what holds the folder that is being replaced."""

_TRIES, _PAUSE = 100, 0.01
"""How often a folder is looked at that is being replaced, and seconds between."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""Errors of a disk that cannot be written any more."""


def as_path(value: object, argument: str = "folder") -> Path:
    """Returns an argument of that name as a path; raises ArgumentError unless it is a path or text that can be one."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise ArgumentError(must_be(argument, "a path", value))
    return Path(text)


def write_atomically(path: AnyPath, content: str | bytes) -> Path:
    """Writes text (as UTF-8) or bytes to a file that is either whole or not there, and returns its path.

    Raises ArgumentError if its folder does not exist or it is a folder, and WriteError if it cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "note.txt", "whole").read_text()
        'whole'
    """
    if isinstance(content, str):
        content = content.encode()
    with new_file(path) as file:
        file.write_bytes(content)
    return Path(path)


@contextmanager
def new_file(path: AnyPath) -> Iterator[Path]:
    """Yields where to write a file that appears when the block ends, in place of an older one, or not if it raises.

    The umask decides who may read it, whatever permissions the block gave it. Errors are those of `write_atomically`.
    """
    path = Path(path)
    can_be = path.parent.is_dir() and not path.is_dir()
    require(can_be, "path", "a file in a folder that exists", str(path))
    with _as_write_error(path), hidden_folder(path.parent, path.name) as hidden:
        file = hidden / path.name
        yield file
        file.chmod(hidden.stat().st_mode & 0o666)
        with file.open("r+b") as written:
            os.fsync(written.fileno())
        os.replace(file, path)


def require_new_folder(path: AnyPath, argument: str = "folder", *, may_be: str = "") -> Path:
    """Returns the path of a folder to be made; raises ArgumentError unless it is empty, or absent and can be made.

    The message names the argument in which the path came, and what else it `may_be`, such as "a network, ". The current
    folder is refused: replacing it would leave the user's shell in a deleted one.
    """
    path = as_path(path, argument)
    place = Path(os.path.realpath(path))  # where a link leads
    try:
        if path.is_dir() and any(path.iterdir()):
            raise ArgumentError(
                f"{argument} must be {may_be}new or empty, but {str(path)!r} is not empty"
            )
        if path.is_dir() and path.samefile("."):
            raise ArgumentError(f"{argument} must not be the current folder: name a new one")
        if os.path.ismount(place):  # what is there cannot be replaced
            raise ArgumentError(
                f"{argument} must not be a mount point: name a folder in {str(path)!r}"
            )
        if path.exists() and not path.is_dir():
            raise ArgumentError(f"{argument} must be a folder, but {str(path)!r} is a file")
        above = next(folder for folder in place.parents if folder.exists())
        if not above.is_dir():
            raise ArgumentError(
                f"{argument} must be in a folder, but above {str(path)!r} is a file"
            )
        require_writable(above)
    except OSError as error:
        raise ArgumentError(
            f"{argument} cannot be made: {error.strerror}: {str(place)!r}"
        ) from None
    return path


def require_writable(folder: Path) -> None:
    """Raises OSError if nothing can be written into a folder, found out by trying, before long work is done for it."""
    Path(tempfile.mkdtemp(dir=folder, prefix=".", suffix=_MARK)).rmdir()


@contextmanager
def new_folder(path: AnyPath, argument: str = "folder", *, replace: bool = False) -> Iterator[Path]:
    """Yields a folder to be filled, which appears at the path when the block ends, or not at all if the block raises.

    Missing parents are made, and a link stands for its folder. Raises ArgumentError as `require_new_folder` does, and
    WriteError if the folder cannot be written. With `replace` a folder that is there is set aside, and removed when the
    filled one stands in its place. If the process is killed between, the next one that writes beside it puts it back.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with new_folder(Path(place) / "made") as folder:
        ...         _ = write_atomically(folder / "note.txt", "all of it")
        ...     sorted(file.name for file in (Path(place) / "made").iterdir())
        ['note.txt']
    """
    path = as_path(path, argument) if replace else require_new_folder(path, argument)
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    with _as_write_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(path.parent)
        with hidden_folder(path.parent, path.name) as hidden:
            folder = hidden / path.name
            folder.mkdir()
            yield folder
            if replace and path.is_dir():
                replaced = hidden / _REPLACED
                replaced.mkdir()
                os.replace(path, replaced / path.name)
            elif path.is_dir():
                path.rmdir()  # raises if something else has filled it meanwhile
            os.replace(folder, path)


def read_whole(folder: Path, read: Callable[[], T]) -> T:
    """Returns what `read` makes of a folder, all of it from before or from after a replacement by another process.

    An error of `read` is raised only if the folder stayed the same meanwhile; otherwise it is read again. Raises
    CheckpointError if it is replaced in every one of a hundred tries.
    """
    for _ in range(_TRIES):
        before = folder_state(folder)
        try:
            result = read()
        except (OSError, CheckpointError):
            if folder_state(folder) == before:
                raise
            continue
        if folder_state(folder) == before:
            return result
    raise CheckpointError(
        f"{folder} was replaced by another process each of the {_TRIES} times that it was read"
    )


def folder_state(folder: Path) -> tuple[int, ...] | None:
    """Returns what changes when a folder is replaced; None if it is not there.

    While another process exchanges it, waits until the new one stands in its place.
    """
    place = Path(os.path.realpath(folder))
    aside = f".{escape(place.name[:40])}.????????{_MARK}/{_REPLACED}/{escape(place.name)}"
    for _ in range(_TRIES):
        with suppress(OSError):
            state = folder.stat()
            return state.st_dev, state.st_ino, state.st_mtime_ns, state.st_ctime_ns
        if not any(place.parent.glob(aside)):
            break
        clear_leftovers(place.parent)
        sleep(_PAUSE)
    return None


@contextmanager
def hidden_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yields a new hidden folder, which is removed when the block ends unless the block has renamed it."""
    folder = parent / f".{name[:40]}.{os.urandom(4).hex()}{_MARK}"
    lock = folder.with_name(folder.name + _LOCK)
    with _locked(lock, wait=True):  # for one that takes the new lock for a leftover
        folder.mkdir()
        try:
            yield folder
        finally:
            _discard(folder)


def clear_leftovers(folder: Path) -> None:
    """Removes the hidden folders of killed processes from a folder; those of running processes stay."""
    for lock in folder.glob(f".*.????????{_MARK}{_LOCK}"):
        with suppress(OSError, CheckpointError), _locked(lock, wait=False):
            _discard(lock.with_name(lock.name.removesuffix(_LOCK)))


def _discard(hidden: Path) -> None:
    """Removes a hidden folder, after putting back the folder that nothing has replaced."""
    for replaced in (hidden / _REPLACED).glob("*"):
        place = hidden.parent / replaced.name
        if not place.exists():
            os.replace(replaced, place)
    shutil.rmtree(hidden, ignore_errors=True)


def sole_use(folder: Path) -> AbstractContextManager[None]:
    """Locks an existing folder for this process by a file `.lock` in it; the lock ends with the process.

    Raises CheckpointError if another process has locked the folder.
    """
    return _locked(folder / _LOCK, wait=False)


@contextmanager
def _locked(file: Path, *, wait: bool) -> Iterator[None]:
    """Locks a file, which is made for that and removed at the end.

    Without `wait` raises CheckpointError if it is locked already.
    """
    lock = FileLock(file)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        raise CheckpointError(f"{file.parent} is in use by another process") from None
    try:
        yield
    finally:
        # where an open file cannot be removed, releasing the lock removes it
        with suppress(OSError):
            file.unlink()
        lock.release()


@contextmanager
def _as_write_error(path: Path) -> Iterator[None]:
    """Raises WriteError in place of an OSError that says that the disk is full or the path cannot be written."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        is_ours = False
        if error.filename is not None:
            failed = Path(os.fsdecode(error.filename))
            is_ours = failed in path.parents or failed.parent in (path, path.parent)
            is_ours = is_ours or failed.parent.name.endswith(_MARK)
        if error.errno in FULL or is_ours:
            raise WriteError(f"cannot write {path}: {error.strerror}") from None
        raise
