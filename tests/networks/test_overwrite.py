"""A saved network is replaced by another, wholly or not at all, and no other folder is."""

import errno
import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from threading import Event, Thread
from time import sleep

import pytest
from tests.networks.overwrite_kills import network
from torch import nn

from convattn import files, load_network, save_network, sealed
from convattn.errors import ArgumentError, CheckpointError, WriteError
from convattn.files import folder_state


def value(folder):
    return load_network(folder, model=network(0.0))[0].weight[0, 0, 0].item()


def test_a_kill_at_any_step_leaves_the_old_or_the_new_network(tmp_path):
    command = [sys.executable, "-m", "tests.networks.overwrite_kills", str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts, lost = done.stdout.splitlines()
    old, new, put_back = map(int, counts.split())
    assert old > 20  # kills before the exchange, and after it
    assert new > 2
    assert put_back > 0  # kills in the middle of it
    assert "source must be a folder that exists" in lost  # the control


WRITER = """
import sys
from tests.networks.overwrite_kills import network
from convattn import save_network
while True:
    for value in (1.0, 2.0):
        save_network(network(value), sys.argv[1], overwrite=True)
"""


def test_loading_while_another_process_saves_gives_the_old_or_the_new_network(tmp_path):
    folder = save_network(network(1.0), tmp_path / "made")
    found = set()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)])
    try:
        first = folder.stat().st_ino
        while folder_state(folder)[1] == first:
            sleep(0.01)
        for turn in range(100):
            loaded = load_network(folder, model=network(0.0), verify=turn % 2 == 0)
            (number,) = set(loaded[0].weight.flatten().tolist())
            found.add(number)
    finally:
        writer.kill()
        writer.wait()
    assert found == {1.0, 2.0}


@pytest.mark.parametrize("verify", [True, False])
def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch, verify):
    folder, read, reads = save_network(network(1.0), tmp_path / "made"), sealed.load_file, []

    def replaced_meanwhile(file):
        reads.append(file)
        if len(reads) == 1:
            save_network(network(2.0), folder, overwrite=True)
        return read(file)

    monkeypatch.setattr(sealed, "load_file", replaced_meanwhile)
    assert load_network(folder, model=network(0.0), verify=verify)[0].weight.unique() == 2
    assert len(reads) == 2


def test_a_folder_that_never_stays_the_same_is_not_said_to_be_edited(tmp_path, monkeypatch):
    folder, read = save_network(network(1.0), tmp_path / "made"), sealed.load_file

    def replaced_meanwhile(file):
        save_network(network(2.0), folder, overwrite=True)
        return read(file)

    monkeypatch.setattr(sealed, "load_file", replaced_meanwhile)
    monkeypatch.setattr(files, "_TRIES", 3)
    message = r"made was replaced by another process each of the 3 times that it was read$"
    with pytest.raises(CheckpointError, match=message):
        load_network(folder, model=network(0.0))


def test_loading_waits_while_folders_are_exchanged(tmp_path, monkeypatch):
    folder, replace = save_network(network(1.0), tmp_path / "made"), os.replace
    is_aside = Event()

    def slow(source, target):
        if target == folder:
            is_aside.set()
            sleep(0.1)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    writer = Thread(target=save_network, args=(network(2.0), folder), kwargs={"overwrite": True})
    writer.start()
    assert is_aside.wait(60)
    assert not folder.exists()
    assert value(folder) == 2
    writer.join()


def test_a_saved_network_is_replaced_if_that_is_asked(tmp_path):
    folder = save_network(network(1.0), tmp_path / "made", overwrite=True)
    with pytest.raises(
        ArgumentError, match=r"made' holds a saved network: overwrite=True replaces it"
    ):
        save_network(network(2.0), folder)
    assert value(folder) == 1
    assert value(save_network(network(2.0), folder, overwrite=True)) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["made"]


def test_no_other_folder_is_replaced(tmp_path):
    made = nn.Conv1d(2, 3, 5)

    def refused(folder):
        before = sorted(folder.iterdir())
        with pytest.raises(
            ArgumentError, match=r"folder must be a saved network, new or empty, but .* is not"
        ):
            save_network(made, folder, overwrite=True)
        assert sorted(folder.iterdir()) == before

    for name, content in {
        "config.json": '{"kind": "network"}',
        "model.safetensors": "",
        "notes.txt": "",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(content)
        refused(tmp_path / name)
    folder = save_network(made, tmp_path / "made")
    (folder / "README.md").unlink()
    (folder / "README.md").mkdir()
    (folder / "README.md" / "mine.txt").write_text("kept")
    refused(folder)
    (folder / "README.md" / "mine.txt").unlink()
    (folder / "README.md").rmdir()
    (tmp_path / "link").symlink_to(folder)
    refused(tmp_path / "link")
    with chdir(folder):
        refused(folder)
    (folder / "mine.txt").write_text("kept")
    refused(folder)


def test_where_folders_cannot_be_exchanged_the_old_one_stays(tmp_path, monkeypatch):
    folder, replace = save_network(network(1.0), tmp_path / "made"), os.replace

    def fail(source, target):
        if target == folder and ".replaced" not in Path(source).parts:
            raise OSError(errno.EACCES, "Permission denied", str(source), None, str(target))
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(WriteError, match=r"cannot write .*made: Permission denied"):
            save_network(network(2.0), folder, overwrite=True)
        patched.undo()
    assert value(folder) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["made"]
