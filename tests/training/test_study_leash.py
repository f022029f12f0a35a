"""The leash: no run outlives whoever holds it, and no two are at work in one folder."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from convattn.training.studies import leash
from convattn.training.studies.leash import lock

LEASH = leash.__file__
SLEEPER = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(3600)"


@pytest.fixture
def start(tmp_path):
    """Starts a leash that holds a program; all are ended after the test."""
    leashes = []

    def begin(program):
        command = [sys.executable, "-S", "-c", program]
        task = {
            "folder": str(tmp_path / "run"),
            "log": str(tmp_path / "run.log"),
            "start": command,
            "resume": [*command, "--resume"],
            "place": str(tmp_path),
            "environment": {"WORD": "given"},
        }
        begun = subprocess.Popen([sys.executable, "-P", LEASH, json.dumps(task)], stdin=subprocess.PIPE)
        leashes.append(begun)
        return begun

    yield begin
    for begun in leashes:
        begun.stdin.close()
        begun.wait()


def until(condition):
    while not condition():  # the run's own limit ends a wait in vain
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def sleeper(place: Path) -> int:
    until(lambda: (place / "pid").exists() and (place / "pid").read_text())
    return int((place / "pid").read_text())


def test_exit_code_output_and_environment_are_the_programs(start, tmp_path):
    assert start("import os, sys; print(os.environ['WORD']); sys.exit(7)").wait() == 7
    command, *output = (tmp_path / "run.log").read_text().splitlines()
    assert command.startswith(f"$ {sys.executable}")
    assert output == ["given"]


def test_finished_run_is_not_run_again(start, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text("{}")
    assert start("import sys; sys.exit(7)").wait() == 0
    assert (tmp_path / "run.log").read_text() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
@pytest.mark.parametrize("death", ["end of input", "SIGTERM", "SIGKILL"])
def test_run_ends_with_its_leash(start, tmp_path, death):
    leash = start(SLEEPER)
    pid = sleeper(tmp_path)
    assert alive(pid)
    if death == "end of input":
        leash.stdin.close()
    else:
        os.kill(leash.pid, getattr(signal, death))
    leash.wait()
    until(lambda: not alive(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
def test_second_leash_waits_until_the_first_has_let_go(start, tmp_path):
    first = start(SLEEPER)
    pid = sleeper(tmp_path)
    second = start("print('second')")
    with (tmp_path / "run.log").open("ab") as log:
        assert not lock(log, patience=0.3)
        assert alive(pid)
        assert second.poll() is None
        first.stdin.close()
        assert second.wait() == 0
        assert lock(log, patience=1)
    assert (tmp_path / "run.log").read_text().splitlines()[-1] == "second"


def test_death_by_a_signal_is_the_last_line_of_the_log(start, tmp_path):
    assert start("import os; os.kill(os.getpid(), 9)").wait() == 9
    assert (tmp_path / "run.log").read_text().splitlines()[-1] == "ended by SIGKILL"


def test_program_that_is_not_there_is_the_last_line_of_the_log(tmp_path):
    task = {
        "folder": str(tmp_path / "run"),
        "log": str(tmp_path / "run.log"),
        "start": ["no-such-program"],
        "resume": [],
        "place": str(tmp_path),
        "environment": {},
    }
    assert subprocess.run([sys.executable, "-P", LEASH, json.dumps(task)], check=False).returncode == 1
    expected = f"cannot run no-such-program in {tmp_path}: No such file or directory"
    assert (tmp_path / "run.log").read_text().splitlines()[-1] == expected
