import io
import json
import math
import re
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from pyarrow import parquet
from rich.console import Console
from tests.lab.tiny import tiny_data, tiny_recipe
from tests.testing.float32 import float32_by

from convattn import load_network
from convattn.errors import ArgumentError, RecipeError, TrainingError
from convattn.heads.head_snapshots import HEAD_COLUMNS
from convattn.lab import load_recipe, loop, train, trainer
from convattn.lab.loop import peak_memory
from convattn.models import AttentionNet
from convattn.provenance import RunRecord


def test_run_leaves_all_its_files(tmp_path):
    record = train(tiny_recipe(), output=tmp_path / "run", data=tiny_data(), progress=False)
    folder = tmp_path / "run"
    expected = [
        "README.md",
        "config.json",
        "heads.parquet",
        "metrics.jsonl",
        "model.safetensors",
        "recipe.toml",
        "record.json",
    ]
    assert sorted(file.name for file in folder.iterdir()) == expected
    assert RunRecord.load(folder / "record.json") == record
    assert load_recipe(folder / "recipe.toml") == tiny_recipe()
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(row["epoch"], row["step"]) for row in metrics] == [(1, 5), (2, 10)]
    assert metrics[-1]["test_accuracy"] == record.results["test_accuracy"]
    heads = parquet.read_table(folder / "heads.parquet")
    assert heads.schema.names == [*HEAD_COLUMNS]
    assert heads["step"].to_pylist() == [step for step in range(11) for _ in range(3)]
    assert heads["epoch"].to_pylist() == [
        epoch for epoch in [0] * 5 + [1] * 5 + [2] for _ in range(3)
    ]
    network = load_network(folder)
    assert isinstance(network, AttentionNet)
    assert record.parameters == sum(parameter.numel() for parameter in network.parameters())
    last = heads.to_pylist()[-3:]
    centres = network.blocks[0].mixer.encoding.centres.double().tolist()
    assert [[row["centre_row"], row["centre_col"]] for row in last] == centres


def test_each_epoch_is_told():
    told = []
    train(tiny_recipe(epochs=2), data=tiny_data(), progress=False, tell=told.append)
    assert [line.partition(":")[0] for line in told] == ["epoch 1", "epoch 2"]
    assert re.search(r"; 1 to go, about \d+ s, until [A-Z][a-z]{2} \d\d:\d\d$", told[0])
    assert re.search(r"test [\d.]+%$", told[1])


def test_a_long_epoch_says_how_far_it_is(monkeypatch):
    monkeypatch.setattr(loop, "_SILENCE", 0)
    told = []
    train(tiny_recipe(epochs=1), data=tiny_data(), progress=False, tell=told.append)
    assert told[:-1] == [f"epoch 1: {step} of 5 steps" for step in range(1, 5)]


@pytest.mark.parametrize(
    ("seconds", "epochs", "said"),
    [
        ([10, 20], 5, "; 3 to go, about 45 s, until {}"),
        ([400], 10, "; 9 to go, about 1.0 hours, until {}"),
        ([7, 7], 2, ""),
    ],
)
def test_time_left_is_that_of_the_epochs_so_far(seconds, epochs, said):
    history = [{"seconds": float(number)} for number in seconds]
    left = (epochs - len(seconds)) * sum(seconds) / len(seconds)
    until = time.strftime("%a %H:%M", time.localtime(1.8e9 + left))
    assert loop.time_left(history, epochs, 1.8e9) == said.format(until)


def test_same_seed_gives_the_same_bits_and_another_does_not(tmp_path):
    runs = {"first": 0, "again": 0, "other": 1}
    for name, seed in runs.items():
        torch.manual_seed(hash(name) % 1000)  # the caller's random state must not matter
        train(
            tiny_recipe(seed=seed, dropout=0.2),
            output=tmp_path / name,
            data=tiny_data(),
            progress=False,
        )
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in runs}
    assert weights["first"] == weights["again"]
    assert weights["first"] != weights["other"]


def test_callers_random_state_is_left_as_it_was():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    train(tiny_recipe(epochs=1), data=tiny_data(), progress=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_learns():
    record = train(tiny_recipe(epochs=12), data=tiny_data(), progress=False)
    assert record.results["test_loss"] < math.log(2) / 2
    assert record.results["test_accuracy"] >= 0.9


def test_folder_with_contents_is_refused_and_kept(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ArgumentError, match="output must be new or empty"):
        train(tiny_recipe(), output=tmp_path, data=tiny_data(), progress=False)
    assert [file.name for file in tmp_path.iterdir()] == ["note.txt"]


def test_folder_of_a_run_is_refused_and_the_message_says_how_to_go_on(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    message = (
        r"output must be new or empty, but '.*' holds a run: continue it with "
        r"resume=True \(command: --resume\), or"
    )
    with pytest.raises(ArgumentError, match=message):
        train(tiny_recipe(), output=tmp_path, data=tiny_data(), progress=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"recipe": "sa-quadratic"},
            r"recipe must be a Recipe, as load_recipe\(NAME\) returns it, but is 'sa-quadratic'",
        ),
        ({"recipe": tiny_recipe(), "output": 3}, "output must be a path, but is 3"),
        (
            {"recipe": tiny_recipe(), "checkpoint_every": 2.5},
            "checkpoint_every must be an integer of at least 1, but is 2.5",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, message, without_type_checks):
    with pytest.raises(ArgumentError, match=message):
        train(**arguments, progress=False)


def test_batch_larger_than_the_data_is_refused():
    with pytest.raises(
        RecipeError,
        match=r"training.batch_size must be from 1 \(processes\) to 5 \(training images\)",
    ):
        train(tiny_recipe(), data=tiny_data(train=5), progress=False)


def test_loss_that_is_not_finite_stops_the_run_without_a_record(tmp_path):
    with pytest.raises(TrainingError, match="tiny: the loss is nan at step"):
        train(
            tiny_recipe(learning_rate=1e30),
            output=tmp_path / "run",
            data=tiny_data(),
            progress=False,
        )
    assert not (tmp_path / "run" / "record.json").exists()


def test_weights_that_are_not_finite_are_never_a_checkpoint(tmp_path, monkeypatch):
    """The last update of an epoch, and one between two checks of the loss."""
    honest = trainer.Trainer._train_on
    for step, told in ((5, "the test loss is nan after epoch 1"), (3, "the loss is nan at step 3")):

        def spoil(self, *batch, at=step):
            loss = honest(self, *batch)
            if self.step == at - 1:
                next(self.network.parameters()).data.fill_(float("nan"))
            return loss

        monkeypatch.setattr(trainer.Trainer, "_train_on", spoil)
        folder = tmp_path / str(step)
        with pytest.raises(TrainingError, match=f"tiny: {told}"):
            train(
                tiny_recipe(epochs=1),
                output=folder,
                data=tiny_data(),
                progress=False,
                checkpoint_every=step + 1,
            )
        assert [place.name for place in (folder / "checkpoints").iterdir()] == ["step-00000000"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from Linux")
def test_peak_memory_is_that_of_this_run():
    train(tiny_recipe(epochs=1), data=tiny_data(), progress=False)  # loads what training needs
    held = torch.ones(400 * 2**20 // 4)
    before = peak_memory(CPU)
    del held
    record = train(tiny_recipe(epochs=1), data=tiny_data(), progress=False)
    assert record.peak_memory < before - 200 * 2**20


def test_terminal_is_shown_each_epoch(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        loop, "Console", lambda **_: Console(file=screen, force_terminal=True, width=200)
    )
    record = train(tiny_recipe(epochs=2), data=tiny_data(), progress=True)
    assert f"epoch 2: loss {record.results['train_loss']:.3f}" in screen.getvalue()
    assert f"test {record.results['test_accuracy']:.2%}" in screen.getvalue()


def test_what_is_no_terminal_is_shown_nothing(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(loop, "Console", lambda **_: Console(file=screen, force_terminal=False))
    train(tiny_recipe(epochs=1), data=tiny_data(), progress=True)
    assert screen.getvalue() == ""


def test_heads_of_a_long_run_are_recorded_at_some_of_its_steps(monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "_MOMENTS", 3)  # of ten steps in two epochs
    train(tiny_recipe(epochs=2), output=tmp_path / "run", data=tiny_data(), progress=False)
    steps = parquet.read_table(tmp_path / "run" / "heads.parquet")["step"].to_pylist()
    assert steps == [step for step in (0, 4, 5, 8, 10) for _ in range(3)]


CPU = torch.device("cpu")


def fail():
    raise TrainingError("the loss is inf")


def test_cudnn_times_its_algorithms_during_a_run_alone():
    cudnn = torch.backends.cudnn
    for before in (False, True):
        for work in (lambda: None, fail):
            with cudnn.flags(benchmark=before, allow_tf32=cudnn.conv.fp32_precision == "tf32"):
                with suppress(TrainingError), loop._process_state_kept():
                    assert cudnn.benchmark
                    assert loop.cuda_settings()["cudnn_benchmark"] == "True"
                    work()
                assert cudnn.benchmark is before


def test_a_run_on_cuda_records_where_tf32_is_used():
    for products, convolutions in (("ieee", "tf32"), ("tf32", "ieee")):
        with float32_by(products, convolutions):
            settings = loop.cuda_settings()
        assert settings["tf32_products"] == str(products == "tf32")
        assert settings["tf32_convolutions"] == str(convolutions == "tf32")
        assert settings["memory_format"] == "channels_last"


def test_peak_memory_is_at_least_what_is_held(monkeypatch):
    """On Linux it is the kernel that says so: what `resource` says is inherited."""
    if sys.platform.startswith("linux"):
        monkeypatch.setitem(sys.modules, "resource", None)
    held = torch.ones(10_000_000)
    assert peak_memory(CPU) >= held.numel() * held.element_size()


@pytest.mark.parametrize(
    ("status", "platform", "expected"),
    [
        ("VmPeak:\t  97 kB\nVmHWM:\t   11 kB\nVmRSS:\t  5 kB\n", "linux", 11 * 1024),
        ("VmPeak:\t  97 kB\n", "linux", 7 * 1024),
        (None, "linux", 7 * 1024),
        (None, "darwin", 7),
    ],
    ids=["named by the kernel", "not named", "no file", "macOS counts bytes"],
)
def test_peak_memory_is_in_bytes(monkeypatch, tmp_path, status, platform, expected):
    if status is not None:
        (tmp_path / "status").write_text(status)
    monkeypatch.setattr(loop, "Path", lambda _: tmp_path / "status")
    monkeypatch.setattr(loop, "sys", SimpleNamespace(platform=platform))
    usage = SimpleNamespace(getrusage={"own": SimpleNamespace(ru_maxrss=7)}.get, RUSAGE_SELF="own")
    monkeypatch.setitem(sys.modules, "resource", usage)
    assert peak_memory(CPU) == expected


def test_peak_memory_is_none_where_the_system_does_not_say_it(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "Path", lambda _: tmp_path / "status")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory(CPU) == 0


def test_peak_memory_of_a_gpu_is_that_of_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {torch.device("cuda:3"): 13}.get)
    assert peak_memory(torch.device("cuda:3")) == 13
