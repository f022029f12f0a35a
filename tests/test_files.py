import errno
import os
import signal
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from filelock import FileLock

from convattn.errors import ArgumentError, CheckpointError, WriteError
from convattn.files import (
    as_path,
    clear_leftovers,
    folder_state,
    hidden_folder,
    new_folder,
    read_whole,
    require_new_folder,
    sole_use,
    write_atomically,
)


@pytest.fixture(autouse=True)
def umask():
    """All may read, whoever runs the tests."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("content", "written"), [("θ(x)\n", "θ(x)\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")]
)
def test_text_and_bytes_are_written_as_they_are(tmp_path, content, written):
    path = write_atomically(tmp_path / "file", content)
    assert path == tmp_path / "file"
    assert path.read_bytes() == written
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(tmp_path) == ["file"]


def test_a_file_that_is_there_is_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_text("old and longer")
    write_atomically(str(path), "new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_a_mount_point_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.path.ismount", lambda place: place == tmp_path)
    with pytest.raises(ArgumentError, match="must not be a mount point: name a folder in"):
        require_new_folder(tmp_path)


@pytest.mark.parametrize("step", ["mkdir", "fsync", "chmod", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, fail)
        with pytest.raises(WriteError, match=r"cannot write .*file: No space left"):
            write_atomically(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_the_umask_says_who_may_read(tmp_path):
    os.umask(0o027)
    with new_folder(tmp_path / "made") as folder:
        write_atomically(folder / "file", "text")
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "made" / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "write",
    [
        "write_atomically(folder / 'file', 'x' * 10**6)",
        "(folder / 'file').write_bytes(bytes(10**6))",
    ],
)
def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path, write):
    program = f"""
import resource
from convattn.errors import WriteError
from convattn.files import new_folder, write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with new_folder("made") as folder:
        write_atomically(folder / "small", "text")
        {write}
except WriteError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip().endswith("made: File too large") or ran.stdout.strip().endswith(
        "file: File too large"
    )
    assert names(tmp_path) == []


def test_what_a_killed_process_leaves_is_removed_at_the_next_start(tmp_path):
    program = """
import sys, time
from convattn.files import new_folder
with new_folder("made") as folder:
    (folder / "half").write_text("text")
    print("ready", flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    (tmp_path / ".theirs.convattn").mkdir()
    (tmp_path / ".file.01234567.convattn").write_text("a file of somebody's")
    assert len(names(tmp_path)) == 4  # with the lock beside the hidden folder
    with new_folder(tmp_path / "other"):
        pass
    assert len(names(tmp_path)) == 5  # its owner lives
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with new_folder(tmp_path / "made"):
        pass
    assert names(tmp_path) == [".file.01234567.convattn", ".theirs.convattn", "made", "other"]


def test_a_hidden_folder_of_this_process_is_kept_while_it_is_at_work(tmp_path):
    with hidden_folder(tmp_path, "mine") as hidden:
        clear_leftovers(tmp_path)
        assert hidden.is_dir()
    assert names(tmp_path) == []


def test_a_hidden_folder_is_kept_while_it_is_not_locked_yet(tmp_path, monkeypatch):
    acquire, cleared = FileLock.acquire, []

    def slow(lock, **options):
        if not cleared:
            cleared.append(lock)
            Path(lock.lock_file).touch()
            clear_leftovers(tmp_path)  # as another process does
        return acquire(lock, **options)

    monkeypatch.setattr(FileLock, "acquire", slow)
    with hidden_folder(tmp_path, "mine") as hidden:
        assert hidden.is_dir()
    assert len(cleared) == 1
    assert names(tmp_path) == []


@pytest.mark.parametrize("value", [None, 3, b"bytes", "a\0b", ["made"]], ids=repr)
def test_what_is_no_path_is_refused(value):
    with pytest.raises(ArgumentError, match="output must be a path, but is"):
        as_path(value, "output")


@pytest.mark.parametrize("place", ["nowhere/file", "."])
def test_a_file_in_no_folder_or_in_place_of_one_is_refused(tmp_path, place):
    with pytest.raises(
        ArgumentError, match=r"path must be a file in a folder that exists, but is '"
    ):
        write_atomically(tmp_path / place, "text")
    assert names(tmp_path) == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_appears_with_all_its_contents(tmp_path, exists):
    place = tmp_path / "parent" / "made"
    if exists:
        place.mkdir(parents=True)
    with new_folder(place) as folder:
        (folder / "sub").mkdir()
        write_atomically(folder / "sub" / "file", "text")
        assert folder.parent.parent == place.parent
        assert not (place / "sub").exists()
    assert (place / "sub" / "file").read_text() == "text"
    assert place.stat().st_mode & 0o777 == 0o755
    assert names(place.parent) == ["made"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_stands_for_its_folder(tmp_path, exists):
    (tmp_path / "link").symlink_to("disk/made")
    (tmp_path / "disk" / "made" if exists else tmp_path / "disk").mkdir(parents=True)
    with new_folder(tmp_path / "link") as folder:
        write_atomically(folder / "file", "text")
    assert (tmp_path / "disk" / "made" / "file").read_text() == "text"
    assert (names(tmp_path), names(tmp_path / "disk")) == (["disk", "link"], ["made"])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_raises_leaves_nothing(tmp_path, error):
    def fill():
        with new_folder(tmp_path / "made") as folder:
            write_atomically(folder / "file", "text")
            raise error("while filling")

    with pytest.raises(error, match="while filling"):
        fill()
    assert names(tmp_path) == []


def test_a_folder_that_something_else_makes_meanwhile_is_not_overwritten(tmp_path):
    place = tmp_path / "made"

    def race():
        with new_folder(place) as folder:
            write_atomically(folder / "file", "ours")
            place.mkdir()
            write_atomically(place / "file", "theirs")

    with pytest.raises(WriteError, match=r"cannot write .*made: Directory not empty"):
        race()
    assert (place / "file").read_text() == "theirs"
    assert names(tmp_path) == ["made"]


def test_what_is_there_is_refused(tmp_path):
    (tmp_path / "full").mkdir()
    for path in (tmp_path / "full" / "kept", tmp_path / "file"):
        path.write_text("kept")
    with pytest.raises(
        ArgumentError, match=r"folder must be new or empty, but '.*full' is not empty"
    ):
        require_new_folder(tmp_path / "full")
    (tmp_path / "here").mkdir()
    with (
        chdir(tmp_path / "here"),
        pytest.raises(ArgumentError, match="folder must not be the current folder"),
    ):
        require_new_folder("../here")
    (tmp_path / "here").rmdir()
    with pytest.raises(ArgumentError, match=r"output must be a folder, but '.*file' is a file"):
        require_new_folder(str(tmp_path / "file"), "output")
    (tmp_path / "link").symlink_to("x" * 300)
    with pytest.raises(
        ArgumentError, match=r"folder cannot be made: File name too long: '.*x{300}'"
    ):
        require_new_folder(tmp_path / "link")
    (tmp_path / "link").unlink()
    for place, message in {
        "full": "output must be new or empty",
        "file": "output must be a folder, but",
        "file/made": "output must be in a folder, but above",
        "file/deep/made": "output must be in a folder, but above",
    }.items():
        with pytest.raises(ArgumentError, match=message), new_folder(tmp_path / place, "output"):
            pytest.fail("the block must not be entered")
        with pytest.raises(
            ArgumentError, match=message
        ):  # before the work whose result is to be there
            require_new_folder(tmp_path / place, "output")
    assert names(tmp_path) == ["file", "full"]
    assert (tmp_path / "full" / "kept").read_text() == "kept"


def test_a_folder_is_for_one_process_at_a_time(tmp_path):
    with sole_use(tmp_path):
        assert names(tmp_path) == [".lock"]
        with (
            pytest.raises(CheckpointError, match="is in use by another process"),
            sole_use(tmp_path),
        ):
            pytest.fail("the block must not be entered")
    with sole_use(tmp_path):
        pass
    assert names(tmp_path) == []


def test_a_folder_is_read_again_until_it_stays_the_same(tmp_path):
    (tmp_path / "made").mkdir()
    reads = []

    def read():
        reads.append(len(reads))
        if len(reads) < 3:
            with new_folder(tmp_path / "made", replace=True) as folder:
                write_atomically(folder / "file", str(len(reads)))
            raise CheckpointError("parts of two folders")
        return (tmp_path / "made" / "file").read_text()

    assert read_whole(tmp_path / "made", read) == "2"
    assert len(reads) == 3


def test_the_error_of_a_folder_that_stays_the_same_is_raised_at_once(tmp_path):
    reads = []

    def read():
        reads.append(1)
        raise CheckpointError("damaged")

    with pytest.raises(CheckpointError, match=r"^damaged$"):
        read_whole(tmp_path, read)
    assert len(reads) == 1


def test_a_folder_that_a_killed_process_set_aside_is_put_back_by_who_reads_it(tmp_path):
    aside = tmp_path / ".made.01234567.convattn" / ".replaced" / "made"
    aside.mkdir(parents=True)
    (tmp_path / ".made.01234567.convattn.lock").write_text("")
    assert folder_state(tmp_path / "made") is not None
    assert names(tmp_path) == ["made"]
    assert folder_state(tmp_path / "other") is None
    assert folder_state(Path("x" * 300)) is None
