"""The leash: no run outlives whoever holds it, and no two are at work in one folder."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from convattn.lab import leash
from convattn.lab.leash import lock

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


@pytest.fixture
def hold(tmp_path, monkeypatch):
    """Runs a program on a leash in this process, whose handlers of signals are put back; `hold.end` lets go."""
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(read))
    monkeypatch.setattr(leash, "_die_with_parent", None)  # is for a process of one thread
    for name, seconds in {"_POLL": 0.01, "_PATIENCE": 0.0}.items():
        monkeypatch.setattr(leash, name, seconds)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    holder = os.fdopen(write, "wb", buffering=0)

    def run(program, *, place=tmp_path, shell=False):
        command = ["sh", "-c", program] if shell else [sys.executable, "-S", "-c", program]
        task = {
            "folder": str(tmp_path / "run"),
            "log": str(tmp_path / "run.log"),
            "start": command,
            "resume": [*command, "resumed"],
            "place": str(place),
            "environment": {"WORD": "given"},
        }
        return leash.main(json.dumps(task))

    run.end = holder.close
    run.tell = holder.write
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)
    sys.stdin.close()
    holder.close()


def when(condition, act):
    """Acts as soon as a condition holds, while the test waits for its program."""

    def wait():
        until(condition)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def output(place: Path) -> list[str]:
    """Return what the log holds after the command."""
    return (place / "run.log").read_text().splitlines()[1:]


def test_program_sees_its_place_its_environment_and_no_input(hold, tmp_path):
    assert hold("import os, sys; print(os.getcwd(), os.environ['WORD'], repr(sys.stdin.read())); sys.exit(5)") == 5
    assert output(tmp_path) == [f"{tmp_path} given ''"]


def test_input_that_does_not_end_does_not_end_the_run(hold, tmp_path):
    hold.tell(b"more")
    assert hold("echo done; exit 3", shell=True) == 3
    assert output(tmp_path) == ["done"]


def test_death_by_a_signal_is_its_exit_code_and_named(hold, tmp_path):
    assert hold("kill -USR1 $$", shell=True) == signal.SIGUSR1
    assert output(tmp_path) == ["ended by SIGUSR1"]


def test_end_of_input_ends_a_run_and_its_children_also_those_that_ignore_sigterm(hold, tmp_path, monkeypatch):
    monkeypatch.setattr(leash, "_GRACE", 0.1)
    # The kernel closes a pipe's end with the last process that has it, so its end says that all of them are gone.
    os.mkfifo(tmp_path / "alive")
    reader = os.fdopen(os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    thread = when((tmp_path / "ready").exists, hold.end)
    program = "exec 3>alive; trap '' TERM; (touch ready; while :; do sleep 60; done) & wait"
    assert hold(program, shell=True) == 128 + signal.SIGTERM
    thread.join()
    assert output(tmp_path) == ["stopped"]
    os.set_blocking(reader.fileno(), True)
    assert reader.read() == b""
    reader.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signal_ends_the_leash_with_its_code_and_the_run_before_that(hold, tmp_path, number):
    thread = when((tmp_path / "ready").exists, lambda: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit, match=f"^{128 + number}$"):
        hold("trap 'touch ended; exit' TERM; touch ready; while :; do sleep 0.01; done", shell=True)
    thread.join()
    assert (tmp_path / "ended").exists()
    with (tmp_path / "run.log").open("ab") as log:
        assert lock(log, patience=0)


def test_folder_in_use_is_refused_and_named(hold, tmp_path):
    with (tmp_path / "run.log").open("ab") as log:
        assert lock(log, patience=0)
        assert hold("exit 0", shell=True) == leash.BUSY
    assert (tmp_path / "run.log").read_text() == f"another process is using {tmp_path / 'run'}\n"


def test_lock_is_waited_for(tmp_path, monkeypatch):
    file, clock = tmp_path / "lock", iter(range(10))
    with file.open("ab") as first, file.open("ab") as second:
        assert lock(first, patience=0)
        slept = []

        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == 3:
                fcntl.flock(first, fcntl.LOCK_UN)

        monkeypatch.setattr(leash, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=sleep))
        assert lock(second, patience=5)
        assert len(slept) == 3
        assert not lock(first, patience=1)  # which second now holds
        assert len(slept) == 4


def test_finished_run_is_left_as_it_is(hold, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text("{}")
    assert hold("exit 7", shell=True) == 0
    assert (tmp_path / "run.log").read_text() == ""
    assert [item.name for item in (tmp_path / "run").iterdir()] == ["record.json"]


def test_run_with_a_checkpoint_is_resumed_in_its_folder(hold, tmp_path):
    place = tmp_path / "run" / "checkpoints"
    place.mkdir(parents=True)
    (place / "step-7").touch()
    assert hold("import sys; print(sys.argv[1:])") == 0
    assert output(tmp_path) == ["['resumed']"]
    assert (place / "step-7").exists()


def test_folders_without_a_whole_checkpoint_are_set_aside_by_number_and_kept(hold, tmp_path):
    run = tmp_path / "run"
    for attempt in ("first", "second"):
        (run / "checkpoints" / f".{attempt}.new").mkdir(parents=True)  # which is unfinished
        assert hold("import sys; print(sys.argv[1:])") == 0
        assert not run.exists()
    kept = [tmp_path / f"run.stopped-{number}" / "checkpoints" for number in (1, 2)]
    assert [[item.name for item in place.iterdir()] for place in kept] == [[".first.new"], [".second.new"]]
    assert [line for line in output(tmp_path) if not line.startswith("$")] == ["[]", "[]"]


def test_empty_folder_is_used_as_it_is(hold, tmp_path):
    (tmp_path / "run").mkdir()
    assert hold("touch run/made", shell=True) == 0
    assert (tmp_path / "run" / "made").exists()


def test_place_that_is_not_there_is_named_in_the_log(hold, tmp_path):
    assert hold("exit 0", shell=True, place=tmp_path / "nowhere") == 1
    assert output(tmp_path) == [f"cannot run sh in {tmp_path / 'nowhere'}: No such file or directory"]


@pytest.mark.parametrize(("platform", "asked"), [("linux", [(1, signal.SIGKILL)]), ("darwin", [])])
def test_linux_alone_is_asked_to_end_a_run_whose_leash_is_killed(monkeypatch, platform, asked):
    calls = []
    library = SimpleNamespace(prctl=lambda *words: calls.append(words))
    monkeypatch.setattr(leash, "ctypes", SimpleNamespace(CDLL=lambda _: library))
    monkeypatch.setattr(leash, "sys", SimpleNamespace(platform=platform))
    leash._die_with_parent()
    assert calls == asked
