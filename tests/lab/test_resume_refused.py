import dataclasses
import json
import resource
import subprocess
import sys

import pytest
from tests.lab.resuming import RECIPE, cut_off, newest, resume, timeless, truncate
from tests.lab.tiny import tiny_data

from convattn.errors import ArgumentError, CheckpointError, CheckpointWarning
from convattn.lab import train
from convattn.lab.trainer import Trainer


def flip_a_bit(checkpoint):
    file = checkpoint / "optimizer.bin"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "truncated": (truncate, "changed since it was written: model.safetensors"),
    "one bit": (flip_a_bit, "changed since it was written: optimizer.bin"),
    "file gone": (
        lambda checkpoint: (checkpoint / "random_states_0.pkl").unlink(),
        "FileNotFoundError",
    ),
    "no manifest": (
        lambda checkpoint: (checkpoint / "checkpoint.json").unlink(),
        "FileNotFoundError",
    ),
    "manifest is no JSON": (
        lambda checkpoint: (checkpoint / "checkpoint.json").write_text("{"),
        "JSONDecodeError",
    ),
    "manifest is nested deep": (
        lambda checkpoint: (checkpoint / "checkpoint.json").write_text(100_000 * "["),
        "RecursionError",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_checkpoint_is_said_and_the_one_before_is_used(whole, monkeypatch, tmp_path, name):
    damage, reason = DAMAGES[name]
    cut_off(monkeypatch, tmp_path / "run", step=7)
    assert newest(tmp_path / "run").name == "step-00000007"
    damage(newest(tmp_path / "run"))
    with pytest.warns(
        CheckpointWarning,
        match=rf"checkpoint step-00000007 is damaged.*{reason}.*; step-00000006 is used",
    ):
        resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)


def test_no_checkpoint_left_is_an_error_and_nothing_starts_anew(monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        truncate(checkpoint)
    before = sorted(file.name for file in (tmp_path / "run").rglob("*"))
    with pytest.raises(CheckpointError, match=r"no checkpoint to resume from.*damaged.*damaged"):
        resume(tmp_path / "run")
    assert sorted(file.name for file in (tmp_path / "run").rglob("*")) == before


def test_checkpoint_that_other_code_wrote_is_an_error(monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "load_state_dict", lambda _, state: state["what older code kept"])
        with pytest.raises(
            CheckpointError,
            match=r"step-00000007 is complete, but this version cannot load it \(KeyError",
        ):
            resume(tmp_path / "run")


def test_run_of_another_recipe_is_not_taken_up(whole):
    with pytest.raises(CheckpointError, match=r"holds a run of another recipe: seed is 0, not 4$"):
        resume(whole, dataclasses.replace(RECIPE, seed=4))


def test_other_data_are_refused(monkeypatch, tmp_path):
    def data(digest):
        made = tiny_data()
        return dataclasses.replace(
            made, record=dataclasses.replace(made.record, hashes={"train": digest})
        )

    monkeypatch.setattr("tests.lab.resuming.tiny_data", lambda: data("one"))
    cut_off(monkeypatch, tmp_path / "run", step=7)
    expected = "with other data: it has seen {'train': 'one'}, but there is {'train': 'two'}"
    with pytest.raises(CheckpointError, match=expected):
        train(RECIPE, output=tmp_path / "run", data=data("two"), progress=False, resume=True)
    assert resume(tmp_path / "run").resumed == 1


def test_unreadable_recipe_is_refused(monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=1)
    (tmp_path / "run" / "recipe.toml").write_text("name = ")
    with pytest.raises(CheckpointError, match=r"holds no run to resume: .*recipe\.toml: not TOML"):
        resume(tmp_path / "run")


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"holds no run to resume: .*recipe\.toml: cannot read"
    ):
        resume(tmp_path)


def test_resuming_nothing_and_no_steps_between_checkpoints_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="output must be the run's folder"):
        train(RECIPE, data=tiny_data(), resume=True)
    with pytest.raises(
        ArgumentError, match="checkpoint_every must be an integer of at least 1, but is 0"
    ):
        train(RECIPE, output=tmp_path / "run", data=tiny_data(), checkpoint_every=0)
    assert not (tmp_path / "run").exists()


def test_full_disk_is_an_error_and_leaves_the_checkpoint_before(whole, monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (4000, limits[1])
    )  # heads.parquet still fits, a checkpoint does not
    try:
        with pytest.raises(
            CheckpointError,
            match=r"cannot write the checkpoint of step 8 to .*run \(.*earlier ones are kept",
        ):
            resume(tmp_path / "run", checkpoint_every=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert newest(tmp_path / "run").name == "step-00000007"
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)


def test_full_disk_at_the_start_is_an_error_and_leaves_nothing(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        with pytest.raises(
            CheckpointError, match=r"cannot write the checkpoint of step 0 .*the folder is not made"
        ):
            train(RECIPE, output=tmp_path / "run", data=tiny_data(), progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_two_processes_do_not_take_up_one_run(whole, monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    program = """
import sys
from pathlib import Path
from convattn.files import sole_use
with sole_use(Path("run")):
    print("ready", flush=True)
    sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(CheckpointError, match="run is in use by another process"):
            resume(tmp_path / "run")
        other.kill()
        other.wait()
    (tmp_path / "run" / ".model.01234567.convattn").mkdir()  # as a killed process leaves it
    (tmp_path / "run" / ".model.01234567.convattn.lock").touch()
    resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)
    assert not [file.name for file in (tmp_path / "run").iterdir() if file.name.startswith(".")]


def test_a_run_keeps_its_folder_to_itself(monkeypatch, tmp_path):
    seen = []
    honest = Trainer._train_on

    def look(trainer, *batch):
        if not seen:
            with pytest.raises(CheckpointError, match="is in use by another process") as caught:
                resume(tmp_path / "run")
            seen.append(caught)
        return honest(trainer, *batch)

    monkeypatch.setattr(Trainer, "_train_on", look)
    train(RECIPE, output=tmp_path / "run", data=tiny_data(), progress=False)
    assert len(seen) == 1
    assert not (tmp_path / "run" / ".lock").exists()


def test_checkpoint_of_another_number_of_processes_is_refused_and_kept(monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    manifest = newest(tmp_path / "run") / "checkpoint.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "processes": 3}))
    expected = "^checkpoint step-00000007 was written by 3 processes, but there are 1$"
    with pytest.raises(CheckpointError, match=expected):
        resume(tmp_path / "run")
    assert newest(tmp_path / "run") == manifest.parent
