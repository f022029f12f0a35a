"""Studies with local processes; training itself is replaced by a program that writes the same files."""

import json
import os
import shlex
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from tests.lab.study_fake import FakeTrain

from convattn.cli.study import _read_grid
from convattn.errors import ArgumentError, CheckpointError, DataError
from convattn.files import sole_use
from convattn.lab import study, study_workers
from convattn.lab.run_process import THREADS
from convattn.lab.study_plan import last_line, plan_runs
from convattn.lab.study_record import StudyRecord, difference_in_words, percent, t_interval
from convattn.lab.study_workers import _devices, signals_raise, threads_of
from convattn.provenance import RunRecord

RECIPE = "digits-quadratic"


def run(folder, *, recipes=(RECIPE,), seeds=(0, 1), workers=2, threads=1, drawn=False, **options):
    names = ("epochs", "seconds", "failing", "revisions", "hashes")
    fake, told = FakeTrain(**{name: options.pop(name) for name in names if name in options}), []
    undrawn = nullcontext() if drawn else patch("convattn.lab.studies.accuracy_curves")
    with undrawn, patch("convattn.lab.study_workers.train_command", fake):
        record = study(
            recipes,
            output=folder,
            seeds=seeds,
            workers=workers,
            threads=threads,
            tell=told.append,
            **options,
        )
    return record, told


def weights(folder: Path) -> dict[str, bytes]:
    return {
        file.parent.name: file.read_bytes() for file in sorted(folder.glob("*/model.safetensors"))
    }


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_recipe_runs_with_every_seed_and_is_summarised(tmp_path):
    record, told = run(tmp_path, seeds=(0, 1, 2), grid={"model.heads": ("4", "9")})
    labels = [f"{RECIPE}[model.heads={heads}]" for heads in (4, 9)]
    assert [group.label for group in record.groups] == labels
    assert len(weights(tmp_path)) == len(set(weights(tmp_path).values())) == 6
    for group in record.groups:
        found = [each.accuracy for each in record.runs if each.label == group.label]
        assert (group.accuracy.n, group.accuracy.minimum, group.accuracy.maximum) == (
            3,
            min(found),
            max(found),
        )
    (difference,) = record.differences
    assert (difference.label, difference.baseline, difference.seeds) == (
        labels[1],
        labels[0],
        (0, 1, 2),
    )
    assert (difference.low, difference.high) == t_interval(difference.values)
    assert StudyRecord.load(tmp_path / "study.json") == record
    assert sum("done in 11.0 s" in line for line in told) == 6


def test_page_has_every_number(tmp_path):
    baseline = f"{RECIPE}[training.epochs=2]"
    grid = {"training.epochs": ("1", "2")}
    record, _ = run(tmp_path, grid=grid, baseline=baseline, drawn=True)
    assert (record.baseline, record.differences[0].baseline) == (baseline, baseline)
    page = (tmp_path / "study.md").read_text()
    assert difference_in_words(record.differences[0].values) in page
    figure = (tmp_path / "study.svg").read_text()
    for group in record.groups:
        assert f"| {percent(group.accuracy)} |" in page
        assert f"<!-- {group.label}: {percent(group.accuracy)} (n = 2) -->" in figure
    assert "<!-- test accuracy (%) -->" in figure
    assert "(study.png)" in page
    assert (tmp_path / "study.png").is_file()


def test_finished_runs_are_kept_and_the_record_stays_the_same(tmp_path):
    first, _ = run(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/*")}
    second, told = run(tmp_path)
    assert second == first
    assert told == [f"{RECIPE}-{seed}: kept, finished before" for seed in (0, 1)]
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/*")}
    third, _ = run(tmp_path, seeds=(0, 1, 2))
    assert third.groups[0].accuracy.n == 3


def test_folder_of_another_recipe_is_an_error_that_names_the_difference(tmp_path):
    run(tmp_path)
    expected = r"digits-quadratic-0 holds a run of another recipe: training\.epochs is 45, not 3$"
    with pytest.raises(CheckpointError, match=expected):
        run(tmp_path, overrides={"training.epochs": "3"})
    (tmp_path / f"{RECIPE}-0" / "record.json").unlink()
    with pytest.raises(CheckpointError, match=expected):
        run(tmp_path, overrides={"training.epochs": "3"})


def test_folder_that_is_no_run_is_an_error(tmp_path):
    place = tmp_path / f"{RECIPE}-0"
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    with pytest.raises(
        CheckpointError, match=r"holds no run to resume: .*recipe\.toml: cannot read"
    ):
        run(tmp_path)
    assert (place / "thesis.txt").read_text() == "years of work"
    (tmp_path / f"{RECIPE}-7").write_text("")
    with pytest.raises(CheckpointError, match="is a file, but must be the folder of a run"):
        run(tmp_path, seeds=(7,))


def test_failing_run_does_not_stop_the_others_and_is_tried_again(tmp_path):
    record, told = run(tmp_path, seeds=(0, 1, 2), failing=(f"{RECIPE}-1",))
    assert record.groups[0].accuracy.n == 2
    assert [(each.seed, each.log, each.reason) for each in record.failures] == [
        (1, f"{RECIPE}-1.log", "cannot do epoch 0")
    ]
    assert f"{RECIPE}-1: FAILED: cannot do epoch 0" in told
    assert "cannot do epoch 0" in (tmp_path / "study.md").read_text()
    again, told = run(tmp_path, seeds=(0, 1, 2))
    assert (again.failures, again.groups[0].accuracy.n) == ((), 3)
    assert f"{RECIPE}-1: to be continued from its last checkpoint" in told


def test_study_without_a_finished_run_says_so(tmp_path):
    record, _ = run(tmp_path, seeds=(0,), failing=(f"{RECIPE}-0",))
    assert (record.groups, record.data) == ((), None)
    assert "No run has finished." in (tmp_path / "study.md").read_text()


@pytest.fixture
def interruptible():
    """Lets SIGINT raise, which a process that was started in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "raised", "code"),
    [(signal.SIGINT, KeyboardInterrupt, ""), (signal.SIGTERM, SystemExit, "143")],
    ids=["SIGINT", "SIGTERM"],
)
def test_stopped_study_leaves_no_process_and_is_continued(tmp_path, number, raised, code):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"

    def stop():
        while sum(file.read_text().count("\n") > 1 for file in stopped.glob("*/metrics.jsonl")) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(raised, match=f"^{code}$"):
        run(stopped, epochs=40, seconds=0.1)
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    assert not weights(stopped)
    assert not (stopped / "study.json").exists()
    with sole_use(stopped):  # the study has let go
        size = [len(metrics(stopped / f"{RECIPE}-{seed}")) for seed in (0, 1)]
    _, told = run(stopped, epochs=40)
    assert f"{RECIPE}-1: to be continued from its last checkpoint" in told
    run(whole, epochs=40)
    assert weights(stopped) == weights(whole)
    for seed, count in zip((0, 1), size, strict=True):
        attempts = [row["began"] for row in metrics(stopped / f"{RECIPE}-{seed}")]
        assert sorted(set(attempts)) in (
            [0, count],
            [0, count - 1],
        )  # the last line may lack its checkpoint
        commands = [
            line
            for line in (stopped / f"{RECIPE}-{seed}.log").read_text().splitlines()
            if line[0] == "$"
        ]
        assert [line.endswith(" --resume") for line in commands] == [False, True]


def test_runs_of_different_data_are_not_compared(tmp_path):
    expected = (
        "digits-quadratic-0 and digits-quadratic-1 saw different data and "
        "cannot be compared: images is '123', not '9'"
    )
    with pytest.raises(DataError, match=expected):
        run(tmp_path, hashes={f"{RECIPE}-1": "9"})
    assert not (tmp_path / "study.json").exists()
    with pytest.raises(DataError, match=expected):
        run(tmp_path, seeds=(0, 1, 2))
    assert not (tmp_path / f"{RECIPE}-2").exists()  # nothing more is trained
    with pytest.raises(
        DataError,
        match=r"different data cannot be compared \(digits-quadratic: digits, convnet: cifar10\)",
    ):
        run(tmp_path, recipes=(RECIPE, "convnet"))


def test_other_revisions_and_dirty_code_are_warned_of(tmp_path):
    record, _ = run(tmp_path, revisions={f"{RECIPE}-1": "def-dirty"})
    assert record.warnings == (
        "the runs differ in code revision: abc, def-dirty",
        "the code differed from its revision: def-dirty",
    )
    assert "def-dirty" in (tmp_path / "study.md").read_text()


def test_other_threads_are_warned_of(tmp_path):
    run(tmp_path, seeds=(0,))
    record, _ = run(tmp_path, threads=3)
    assert RunRecord.load(tmp_path / f"{RECIPE}-1" / "record.json").hardware["threads"] == "3"
    assert record.warnings == ("the runs differ in threads: 1, 3",)


def test_two_studies_in_one_folder_are_refused(tmp_path):
    with sole_use(tmp_path), pytest.raises(CheckpointError, match="is in use by another process"):
        run(tmp_path)


def test_a_folder_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(
        ArgumentError,
        match=r"^output must be the folder of a study, new or empty, but .* is not empty$",
    ):
        run(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["workers", "threads"])
def test_less_than_one_is_refused(tmp_path, name):
    with pytest.raises(ArgumentError, match=f"^{name} must be an integer of at least 1, but is 0$"):
        run(tmp_path, **{name: 0})


def test_workers_take_cuda_devices_in_turn(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert [device["CUDA_VISIBLE_DEVICES"] for device in _devices(3)] == ["4", "6", "4"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [device["CUDA_VISIBLE_DEVICES"] for device in _devices(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,9")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)  # there is no ninth
    assert [device["CUDA_VISIBLE_DEVICES"] for device in _devices(2)] == ["0", "0"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert _devices(2) == [{}, {}]


@pytest.mark.parametrize(
    ("platform", "workers", "threads"),
    [
        ("linux", 1, 7),
        ("linux", 2, 3),
        ("linux", 11, 1),
        ("darwin", 2, 6),
        ("a board of one core", 2, 1),
    ],
)
def test_workers_share_the_cores_that_the_process_may_use(
    monkeypatch, tmp_path, platform, workers, threads
):
    cores = SimpleNamespace(
        sched_getaffinity=lambda _: set(range(7)),
        cpu_count=lambda: 13 if platform == "darwin" else None,
    )
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(study_workers, "os", cores)
    monkeypatch.setattr(study_workers, "sys", SimpleNamespace(platform=platform))
    (large,) = plan_runs(["sa-quadratic"], tmp_path, seeds=(0,), scale=None, overrides={}, grid={})
    (small,) = plan_runs([RECIPE], tmp_path, seeds=(0,), scale=None, overrides={}, grid={})
    assert threads_of(large, None, workers) == threads
    assert threads_of(small, None, workers) == 1


def test_sigterm_is_left_alone_outside_the_main_thread():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with signals_raise():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
    with signals_raise():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("ignored", [False, True], ids=["closed", "nohup"])
def test_a_closed_terminal_ends_the_runs_unless_that_is_ignored(monkeypatch, ignored):
    asked = signal.SIG_IGN if ignored else signal.SIG_DFL
    before = signal.signal(signal.SIGHUP, asked)
    try:
        with nullcontext() if ignored else pytest.raises(SystemExit), signals_raise():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == asked
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_command_of_a_grid_of_lists_makes_the_same_variants(tmp_path):
    lists = {"schedule.milestones": ("1,2", "1,3")}
    data = {"data.name": "digits"}
    record, _ = run(tmp_path, recipes=("resnet18",), seeds=(0,), overrides=data, grid=lists)
    words = shlex.split(record.command)
    assert _read_grid((words[words.index("--grid") + 1],)) == {
        "schedule.milestones": ["1,2", "1,3"]
    }
    assert _read_grid(("a=1,2", "b=3")) == {"a": ["1", "2"], "b": ["3"]}
    assert _read_grid(("a=1,2;",)) == {"a": ["1,2"]}


def test_last_line_of_a_log_is_that_with_words(tmp_path):
    log = tmp_path / "run.log"
    assert last_line(log) == "no log"
    log.write_text(" \n\n")
    assert last_line(log) == "no log"
    log.write_bytes(b"first\n  last \xff \n\n \n")
    assert last_line(log) == "last \ufffd"
