import dataclasses
import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet
from tests.training.tiny import tiny_data, tiny_recipe, tiny_speed_recipe

from convattn.errors import ArgumentError, CheckpointError, CheckpointWarning
from convattn.records import RunRecord
from convattn.training import loop, train
from convattn.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
RECIPE = tiny_recipe(epochs=2, dropout=0.2)  # two epochs of five steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    train(RECIPE, output=folder, data=tiny_data(), progress=False)
    return folder


def timeless(folder):
    """What a run leaves behind, but for how long it took."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    untimed = [{key: row[key] for key in row if key not in ("seconds", "images_per_second")} for row in metrics]
    heads = parquet.read_table(folder / "heads.parquet").to_pylist()
    return (folder / "model.safetensors").read_bytes(), untimed, heads


def cut_off(monkeypatch, folder, *, step, recipe=RECIPE, checkpoint_every=1):
    """Trains until a step fails."""
    honest = Trainer._train_on

    def fail_at_step(trainer, *batch):
        if trainer.step == step:
            raise KeyboardInterrupt
        return honest(trainer, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_on", fail_at_step)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, output=folder, data=tiny_data(), progress=False, checkpoint_every=checkpoint_every)


def resume(folder, recipe=RECIPE, **options):
    return train(recipe, output=folder, data=tiny_data(), progress=False, resume=True, **options)


def newest(folder):
    return max((folder / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("step", "checkpoint_every"), [(0, None), (0, 1), (3, 3), (4, 1), (4, None), (5, None), (6, 3), (9, 1), (9, None)]
)
def test_run_cut_off_at_any_step_ends_with_the_same_bits(whole, monkeypatch, tmp_path, step, checkpoint_every):
    cut_off(monkeypatch, tmp_path / "run", step=step, checkpoint_every=checkpoint_every)
    record = resume(tmp_path / "run", checkpoint_every=checkpoint_every)
    assert timeless(tmp_path / "run") == timeless(whole)
    assert record.resumed == 1
    assert "peak memory before the run was last resumed" in record.not_covered
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_other_weights_would_be_noticed(whole, tmp_path):
    train(dataclasses.replace(RECIPE, seed=1), output=tmp_path / "run", data=tiny_data(), progress=False)
    assert timeless(tmp_path / "run")[0] != timeless(whole)[0]


def test_every_state_of_a_strong_recipe_is_taken_up(monkeypatch, tmp_path):
    strong = dataclasses.replace(
        RECIPE,
        data=dataclasses.replace(RECIPE.data, cutout=2, mixup=0.2, cutmix=1.0),
        training=dataclasses.replace(RECIPE.training, ema=0.9, label_smoothing=0.1, reinitialise=(1,), micro_batch=3),
    )
    train(strong, output=tmp_path / "whole", data=tiny_data(), progress=False)
    for step in (3, 7):
        cut_off(monkeypatch, tmp_path / str(step), step=step, recipe=strong)
        resume(tmp_path / str(step), strong)
        assert timeless(tmp_path / str(step)) == timeless(tmp_path / "whole")


@pytest.fixture(scope="module")
def whole_speed(tmp_path_factory):
    """A speed run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "speed"
    train(tiny_speed_recipe(), output=folder, data=tiny_data(), progress=False)
    return folder


@pytest.mark.parametrize(("step", "checkpoint_every"), [(2, 1), (4, 3), (5, None), (7, 1), (9, 4)])
def test_every_state_of_a_speed_run_is_taken_up(whole_speed, monkeypatch, tmp_path, step, checkpoint_every):
    cut_off(monkeypatch, tmp_path / "run", step=step, recipe=tiny_speed_recipe(), checkpoint_every=checkpoint_every)
    resumed = resume(tmp_path / "run", tiny_speed_recipe())
    assert timeless(tmp_path / "run") == timeless(whole_speed)
    expected = RunRecord.load(whole_speed / "record.json").results
    for name in ("views_accuracy", "views_loss"):
        assert resumed.results[name] == expected[name]


def test_run_cut_off_twice_counts_its_time_and_its_resumptions(whole, monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=2)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", lambda *_: (_ for _ in ()).throw(RuntimeError("power cut")))
        with pytest.raises(RuntimeError, match="power"):
            resume(tmp_path / "run", checkpoint_every=1)
    record = resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)
    assert record.resumed == 2


def test_run_cut_off_before_its_record_is_finished_without_another_step(whole, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(RunRecord, "save", lambda *_: (_ for _ in ()).throw(OSError("unplugged")))
        with pytest.raises(CheckpointError, match=r"cannot write the network .*\(unplugged\); .*resume"):
            train(RECIPE, output=tmp_path / "run", data=tiny_data(), progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_on", lambda *_: pytest.fail("a step was taken"))
        record = resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)
    assert record.results["test_accuracy"] == RunRecord.load(whole / "record.json").results["test_accuracy"]


def truncate(checkpoint):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def flip_a_bit(checkpoint):
    file = checkpoint / "optimizer.bin"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "truncated": (truncate, "changed since it was written: model.safetensors"),
    "one bit": (flip_a_bit, "changed since it was written: optimizer.bin"),
    "file gone": (lambda checkpoint: (checkpoint / "random_states_0.pkl").unlink(), "FileNotFoundError"),
    "no manifest": (lambda checkpoint: (checkpoint / "checkpoint.json").unlink(), "FileNotFoundError"),
    "manifest is no JSON": (lambda checkpoint: (checkpoint / "checkpoint.json").write_text("{"), "JSONDecodeError"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_checkpoint_is_said_and_the_one_before_is_used(whole, monkeypatch, tmp_path, name):
    damage, reason = DAMAGES[name]
    cut_off(monkeypatch, tmp_path / "run", step=7)
    assert newest(tmp_path / "run").name == "step-00000007"
    damage(newest(tmp_path / "run"))
    with pytest.warns(
        CheckpointWarning, match=rf"checkpoint step-00000007 is damaged.*{reason}.*the one before it is used"
    ):
        resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)


def test_no_checkpoint_left_is_an_error_and_nothing_starts_anew(monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        truncate(checkpoint)
    before = sorted(file.name for file in (tmp_path / "run").rglob("*"))
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(CheckpointError, match=r"no checkpoint to resume from.*damaged"),
    ):
        resume(tmp_path / "run")
    assert sorted(file.name for file in (tmp_path / "run").rglob("*")) == before


def test_heads_of_the_start_are_kept_once_where_only_its_checkpoint_is_left(whole, monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=1)
    assert (tmp_path / "run" / "heads.parquet").exists()
    truncate(newest(tmp_path / "run"))
    with pytest.warns(CheckpointWarning, match="step-00000001"):
        resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda file: file.unlink(), "must hold 1 epochs, each once"),
        (lambda file: file.write_text(2 * file.read_text()), "must hold 1 epochs, each once"),
        (lambda file: file.write_text('{"step": 5, "epoch": 1}\n'), "learning_rate is missing; it must be a number"),
        (lambda file: file.write_text("{"), "JSONDecodeError"),
    ],
)
def test_metrics_that_are_not_those_of_the_epochs_before_are_an_error(monkeypatch, tmp_path, damage, reason):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    damage(tmp_path / "run" / "metrics.jsonl")
    with pytest.raises(CheckpointError, match=f"cannot resume .*{reason}"):
        resume(tmp_path / "run")


def test_checkpoint_that_other_code_wrote_is_an_error(monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "load_state_dict", lambda _, state: state["what older code kept"])
        with pytest.raises(
            CheckpointError, match=r"step-00000007 is complete, but this version cannot load it \(KeyError"
        ):
            resume(tmp_path / "run")


def test_finished_run_is_left_as_it_is(whole):
    before = {file: file.stat().st_mtime_ns for file in whole.iterdir()}
    assert resume(whole) == RunRecord.load(whole / "record.json")
    assert {file: file.stat().st_mtime_ns for file in whole.iterdir()} == before


def test_random_numbers_of_the_caller_are_left_as_they_were(monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    np.random.seed(5)  # noqa: NPY002  (the state that accelerate saves and loads)
    before, of_torch = str(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
    resume(tmp_path / "run")  # that of Python is not compared here: the run-time type check draws from it
    assert str(np.random.get_state()) == before  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), of_torch)
    of_python = random.getstate()
    with loop._seeded(0, torch.device("cpu")):
        random.seed(5)
    assert random.getstate() == of_python


def test_words_of_another_claim_do_not_make_another_run(whole, monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    assert resume(tmp_path / "run", dataclasses.replace(RECIPE, claim="measured since")).claim == "measured since"
    assert timeless(tmp_path / "run") == timeless(whole)


def test_run_of_another_recipe_is_not_taken_up(whole):
    with pytest.raises(CheckpointError, match=r"holds a run of another recipe: seed is 0, not 4$"):
        resume(whole, dataclasses.replace(RECIPE, seed=4))


def test_unreadable_recipe_is_refused(monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=1)
    (tmp_path / "run" / "recipe.toml").write_text("name = ")
    with pytest.raises(CheckpointError, match=r"holds no run to resume: .*recipe\.toml: not TOML"):
        resume(tmp_path / "run")


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no run to resume: it has no recipe\.toml"):
        resume(tmp_path)


def test_resuming_nothing_and_no_steps_between_checkpoints_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="output must be the run's folder"):
        train(RECIPE, data=tiny_data(), resume=True)
    with pytest.raises(ArgumentError, match="checkpoint_every must be an integer of at least 1, but is 0"):
        train(RECIPE, output=tmp_path / "run", data=tiny_data(), checkpoint_every=0)
    assert not (tmp_path / "run").exists()


def test_full_disk_is_an_error_and_leaves_the_checkpoint_before(whole, monkeypatch, tmp_path):
    cut_off(monkeypatch, tmp_path / "run", step=7)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))  # heads.parquet still fits, a checkpoint does not
    try:
        with pytest.raises(
            CheckpointError, match=r"cannot write the checkpoint of step 8 to .*run \(.*earlier ones are kept"
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
        with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 0 .*the folder is not made"):
            train(RECIPE, output=tmp_path / "run", data=tiny_data(), progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def kill(recipe, folder, count):
    """Kills so many runs at random moments, resumes them and compares their ends with that of an undisturbed one."""
    command = [sys.executable, "-m", "tests.training.kills", recipe, folder, str(count), "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    undisturbed = timeless(folder / "whole")
    for number in range(count):
        assert timeless(folder / str(number)) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["attention", "speed"])
def test_thirty_killed_runs_end_with_the_same_bits(recipe, tmp_path):
    kill(recipe, tmp_path, 30)


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
        [sys.executable, "-c", program], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(CheckpointError, match=rf"run is in use by process {other.pid} on "):
            resume(tmp_path / "run")
        other.kill()
        other.wait()
    (tmp_path / "run" / ".model.01234567.convattn").mkdir()  # as a killed process leaves it
    resume(tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(whole)
    assert not [file.name for file in (tmp_path / "run").iterdir() if file.name.startswith(".")]


def test_a_run_keeps_its_folder_to_itself(monkeypatch, tmp_path):
    seen = []
    honest = Trainer._train_on

    def look(trainer, *batch):
        if not seen:
            with pytest.raises(CheckpointError, match=rf"is in use by process {os.getpid()} on ") as caught:
                resume(tmp_path / "run")
            seen.append(caught)
        return honest(trainer, *batch)

    monkeypatch.setattr(Trainer, "_train_on", look)
    train(RECIPE, output=tmp_path / "run", data=tiny_data(), progress=False)
    assert len(seen) == 1
    assert not (tmp_path / "run" / ".lock").exists()


def test_files_of_a_run_obey_the_umask(whole):
    modes = {file.name: file.stat().st_mode & 0o777 for file in whole.iterdir()}
    assert len(set(modes.values())) == 1, modes
