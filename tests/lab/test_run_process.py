"""One run as a process: how it starts, continues and ends."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from convattn.lab import run_process
from convattn.lab.run_process import RunCommand, carry_out, start_run, stop_runs


@pytest.fixture
def command(tmp_path):
    """Makes the command of a run that is a shell script; it is told whether it is continued."""

    def make(script):
        start = ["sh", "-c", script, "run"]
        run = tmp_path / "run"
        return RunCommand(
            run, tmp_path / "run.log", start, [*start, "resumed"], tmp_path, {"WORD": "given"}
        )

    return make


def until(condition):
    while not condition():  # the test's own limit ends a wait in vain
        time.sleep(0.02)


def output(place: Path) -> list[str]:
    """Return what the log holds besides the commands."""
    return [
        line for line in (place / "run.log").read_text().splitlines() if not line.startswith("$")
    ]


def test_run_sees_its_place_its_environment_and_no_input(command, tmp_path):
    assert carry_out(command("pwd; echo $WORD; cat; exit 5")) == 5
    assert output(tmp_path) == [str(tmp_path), "given"]
    assert (tmp_path / "run.log").read_text().startswith("$ sh -c 'pwd;")


def test_death_by_a_signal_is_named(command, tmp_path):
    assert carry_out(command("kill -USR1 $$")) == -signal.SIGUSR1
    assert output(tmp_path) == ["ended by SIGUSR1"]


def test_runs_are_stopped_with_their_children_also_those_that_ignore_sigterm(
    command, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_process, "_GRACE", 0.3)
    # The kernel closes a pipe's end with the last process that has it, so its end says that all of them are gone.
    os.mkfifo(tmp_path / "alive")
    reader = os.fdopen(os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    stubborn = start_run(
        command("exec 3>alive; trap '' TERM; (touch ready; while :; do sleep 60; done) & wait")
    )
    until((tmp_path / "ready").exists)
    stop_runs([stubborn])
    assert stubborn.returncode == -signal.SIGKILL
    os.set_blocking(reader.fileno(), True)
    assert reader.read() == b""
    reader.close()


def test_worker_that_is_stopped_stops_its_run_first(command, tmp_path):
    def interrupt():
        until((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        carry_out(
            command("trap 'touch ended; exit' TERM; touch ready; while :; do sleep 0.01; done")
        )
    thread.join()
    signal.signal(signal.SIGINT, before)
    assert (tmp_path / "ended").exists()


def test_finished_run_is_left_as_it_is(command, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text("{}")
    assert carry_out(command("exit 7")) == 0
    assert not (tmp_path / "run.log").exists()


def test_run_with_a_checkpoint_is_resumed_in_its_folder(command, tmp_path):
    place = tmp_path / "run" / "checkpoints"
    place.mkdir(parents=True)
    (place / "step-7").touch()
    assert carry_out(command("echo $1")) == 0
    assert output(tmp_path) == ["resumed"]
    assert (place / "step-7").exists()


def test_folders_without_a_whole_checkpoint_are_set_aside_by_number_and_kept(command, tmp_path):
    run = tmp_path / "run"
    for attempt in ("first", "second"):
        (run / "checkpoints" / f".{attempt}.new").mkdir(parents=True)  # which is unfinished
        assert carry_out(command("echo $1")) == 0
        assert not run.exists()
    kept = [tmp_path / f"run.stopped-{number}" / "checkpoints" for number in (1, 2)]
    assert [[item.name for item in place.iterdir()] for place in kept] == [
        [".first.new"],
        [".second.new"],
    ]
    assert output(tmp_path) == ["", ""]


def test_empty_folder_is_used_as_it_is(command, tmp_path):
    (tmp_path / "run").mkdir()
    assert carry_out(command("touch run/made")) == 0
    assert (tmp_path / "run" / "made").exists()


def test_a_worker_loads_neither_torch_nor_the_trainer():
    program = "import sys, convattn.lab.run_process; sys.exit('torch' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", program]) == 0
