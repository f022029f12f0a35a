import os

import pytest

from convattn.errors import ArgumentError
from convattn.files import new_folder, require_new_folder, write_atomically


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("content", "written"), [("θ(x)\n", "θ(x)\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")])
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


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_file_in_no_folder_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"path must be in a folder that exists, but is '.*nowhere/file'"):
        write_atomically(tmp_path / "nowhere" / "file", "text")
    assert names(tmp_path) == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_appears_with_all_its_contents(tmp_path, exists):
    place = tmp_path / "parent" / "made"
    if exists:
        place.mkdir(parents=True)
    with new_folder(place) as folder:
        (folder / "sub").mkdir()
        write_atomically(folder / "sub" / "file", "text")
        assert folder.parent == place.parent
        assert not (place / "sub").exists()
    assert (place / "sub" / "file").read_text() == "text"
    assert place.stat().st_mode & 0o777 == 0o755
    assert names(place.parent) == ["made"]


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

    with pytest.raises(OSError, match="not empty"):
        race()
    assert (place / "file").read_text() == "theirs"
    assert names(tmp_path) == ["made"]


def test_what_is_there_is_refused(tmp_path):
    (tmp_path / "full").mkdir()
    for path in (tmp_path / "full" / "kept", tmp_path / "file"):
        path.write_text("kept")
    with pytest.raises(ArgumentError, match=r"folder must be a folder that is new or empty, but is '.*full'"):
        require_new_folder(tmp_path / "full")
    with pytest.raises(ArgumentError, match=r"output must be a folder, not a file, but is '.*file'"):
        require_new_folder(str(tmp_path / "file"), "output")
    for place, message in {
        "full": "output must be a folder that is new or empty",
        "file": "output must be a folder, not a file",
        "file/made": "output must be a folder whose parents are folders",
        "file/deep/made": "output must be a folder whose parents are folders",
    }.items():
        with pytest.raises(ArgumentError, match=message), new_folder(tmp_path / place, "output"):
            pytest.fail("the block must not be entered")
    assert names(tmp_path) == ["file", "full"]
    assert (tmp_path / "full" / "kept").read_text() == "kept"
