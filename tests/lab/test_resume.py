import dataclasses
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.lab.resuming import RECIPE, cut_off, newest, resume, timeless, truncate
from tests.lab.tiny import tiny_data, tiny_speed_recipe

from convattn.errors import CheckpointError, CheckpointWarning
from convattn.lab import loop, train
from convattn.lab.run_folder import Checkpoints
from convattn.lab.trainer import Trainer
from convattn.provenance import RunRecord

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("step", "checkpoint_every"),
    [(0, None), (3, 3), (4, None), (5, None), (6, 3), (9, 1)],
)
def test_run_cut_off_at_any_step_ends_with_the_same_bits(
    whole, monkeypatch, tmp_path, step, checkpoint_every
):
    cut_off(monkeypatch, tmp_path / "run", step=step, checkpoint_every=checkpoint_every)
    record = resume(tmp_path / "run", checkpoint_every=checkpoint_every)
    assert timeless(tmp_path / "run") == timeless(whole)
    assert record.resumed == 1
    assert (
        "peak memory, hardware, versions and revision before the run was last resumed"
        in record.not_covered
    )
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_other_weights_would_be_noticed(whole, tmp_path):
    train(
        dataclasses.replace(RECIPE, seed=1),
        output=tmp_path / "run",
        data=tiny_data(),
        progress=False,
    )
    assert timeless(tmp_path / "run")[0] != timeless(whole)[0]


@pytest.fixture(scope="module")
def whole_speed(tmp_path_factory):
    """A speed run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "speed"
    train(tiny_speed_recipe(), output=folder, data=tiny_data(), progress=False)
    return folder


@pytest.mark.parametrize(("step", "checkpoint_every"), [(2, 1), (5, None), (9, 4)])
def test_every_state_of_a_speed_run_is_taken_up(
    whole_speed, monkeypatch, tmp_path, step, checkpoint_every
):
    cut_off(
        monkeypatch,
        tmp_path / "run",
        step=step,
        recipe=tiny_speed_recipe(),
        checkpoint_every=checkpoint_every,
    )
    resumed = resume(tmp_path / "run", tiny_speed_recipe())
    assert timeless(tmp_path / "run") == timeless(whole_speed)
    expected = RunRecord.load(whole_speed / "record.json").results
    for name in ("views_accuracy", "views_loss"):
        assert resumed.results[name] == expected[name]


def test_run_cut_off_twice_counts_its_time_and_its_resumptions(whole, monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=2)
    with monkeypatch.context() as patch:
        patch.setattr(
            Trainer, "evaluate", lambda *_: (_ for _ in ()).throw(RuntimeError("power cut"))
        )
        with pytest.raises(RuntimeError, match="power"):
            resume(tmp_path / "run", checkpoint_every=1)
    record = resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)
    assert record.resumed == 2


def test_run_cut_off_before_its_record_is_finished_without_another_step(
    whole, monkeypatch, tmp_path
):
    with monkeypatch.context() as patch:
        patch.setattr(RunRecord, "save", lambda *_: (_ for _ in ()).throw(OSError("unplugged")))
        with pytest.raises(
            CheckpointError, match=r"cannot write the network .*\(unplugged\); .*resume"
        ):
            train(RECIPE, output=tmp_path / "run", data=tiny_data(), progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_on", lambda *_: pytest.fail("a step was taken"))
        record = resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)
    assert (
        record.results["test_accuracy"]
        == RunRecord.load(whole / "record.json").results["test_accuracy"]
    )


def test_files_that_were_damaged_are_written_again(whole, monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    (tmp_path / "run" / "metrics.jsonl").write_text("{")
    (tmp_path / "run" / "heads.parquet").unlink()
    resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)


def test_heads_of_the_start_are_kept_once_where_only_its_checkpoint_is_left(
    whole, monkeypatch, tmp_path
):
    cut_off(monkeypatch, tmp_path / "run", step=1)
    assert (tmp_path / "run" / "heads.parquet").exists()
    truncate(newest(tmp_path / "run"))
    with pytest.warns(CheckpointWarning, match="step-00000001"):
        resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)


def test_finished_run_is_left_as_it_is(whole):
    before = {file: file.stat().st_mtime_ns for file in whole.iterdir()}
    assert resume(whole) == RunRecord.load(whole / "record.json")
    assert {file: file.stat().st_mtime_ns for file in whole.iterdir()} == before


def test_random_numbers_of_the_caller_are_left_as_they_were(monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    np.random.seed(5)  # noqa: NPY002  (the state that accelerate saves and loads)
    before, of_torch = str(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
    resume(
        tmp_path / "run"
    )  # that of Python is not compared here: the run-time type check draws from it
    assert str(np.random.get_state()) == before  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), of_torch)
    of_python = random.getstate()
    with loop._process_state_kept():
        random.seed(5)
    assert random.getstate() == of_python


def test_words_of_another_claim_do_not_make_another_run(whole, monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    assert (
        resume(tmp_path / "run", dataclasses.replace(RECIPE, claim="measured since")).claim
        == "measured since"
    )
    assert timeless(tmp_path / "run") == timeless(whole)


def kill(recipe, folder, count):
    """Kills so many runs at random moments, resumes them and compares their ends with that of an undisturbed one."""
    command = [sys.executable, "-m", "tests.lab.kills", recipe, folder, str(count), "0"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    undisturbed = timeless(folder / "whole")
    for number in range(count):
        assert timeless(folder / str(number)) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["attention", "speed"])
def test_thirty_killed_runs_end_with_the_same_bits(recipe, tmp_path):
    kill(recipe, tmp_path, 30)


def test_files_of_a_run_obey_the_umask(whole):
    modes = {file.name: file.stat().st_mode & 0o777 for file in whole.iterdir()}
    os.umask(umask := os.umask(0o022))
    assert set(modes.values()) == {0o666 & ~umask}, modes


def test_unfinished_checkpoint_is_removed_when_the_next_begins(tmp_path):
    checkpoints, left = Checkpoints(tmp_path), tmp_path / ".step-00000003.01234567.convattn"
    left.mkdir()
    (left / "model.safetensors").write_text("half")
    left.with_name(left.name + ".lock").touch()  # a killed process leaves it unlocked
    with checkpoints._new(5, processes=1) as place:
        assert place.parent.name.startswith(".step-00000005.")
        assert not left.exists()
    assert [item.name for item in tmp_path.iterdir()] == ["step-00000005"]
