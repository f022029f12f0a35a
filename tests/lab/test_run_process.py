"""One run as a process: how it starts, continues and ends."""

import os
import signal
import time
from pathlib import Path

import pytest

from convattn.lab import run_process
from convattn.lab.run_process import note_signal, start_run, stop_runs


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a run that is a shell script, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(script):
        return start_run(tmp_path / "run.log", ["sh", "-c", script], {"WORD": "given"})

    return call


@pytest.fixture
def finish(start, tmp_path):
    """Carries out such a run to its end, and returns its exit code."""

    def call(script):
        process = start(script)
        process.wait()
        note_signal(tmp_path / "run.log", process)
        return process.returncode

    return call


def until(condition):
    while not condition():  # the test's own limit ends a wait in vain
        time.sleep(0.02)


def output(place: Path) -> list[str]:
    """Return what the log holds besides the commands."""
    return [
        line for line in (place / "run.log").read_text().splitlines() if not line.startswith("$")
    ]


def test_run_sees_its_place_its_environment_and_no_input(finish, tmp_path):
    assert finish("pwd; echo $WORD; cat; exit 5") == 5
    assert output(tmp_path) == [str(tmp_path), "given"]
    assert (tmp_path / "run.log").read_text().startswith("$ sh -c 'pwd;")


def test_death_by_a_signal_is_named(finish, tmp_path):
    assert finish("kill -USR1 $$") == -signal.SIGUSR1
    assert output(tmp_path) == ["ended by SIGUSR1"]


def test_runs_are_ended_where_processes_have_no_groups(start, monkeypatch):
    """As on Windows."""
    monkeypatch.setattr(run_process.sys, "platform", "win32")
    monkeypatch.delattr(os, "killpg")
    run = start("sleep 60")
    stop_runs([run])
    assert run.returncode == -signal.SIGKILL


def test_runs_are_stopped_with_their_children_also_those_that_ignore_sigterm(
    start, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_process, "_GRACE", 0.3)
    # The kernel closes a pipe's end with the last process that has it, so its end says that all of them are gone.
    os.mkfifo(tmp_path / "alive")
    reader = os.fdopen(os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    stubborn = start("exec 3>alive; trap '' TERM; (touch ready; while :; do sleep 60; done) & wait")
    until((tmp_path / "ready").exists)
    stop_runs([stubborn])
    assert stubborn.returncode == -signal.SIGKILL
    os.set_blocking(reader.fileno(), True)
    assert reader.read() == b""
    reader.close()
