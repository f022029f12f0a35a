"""The stages for a GPU at their smallest, on the CPU: rows that nothing loses, whole rounds, images that travel."""

import gc
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import nn

from convattn import LearnedAxial, load_recipe
from convattn.data import ImageDataset, ImageSplit, load_digits
from convattn.errors import DataError
from convattn.functional import position_channels
from convattn.grid import Axis
from convattn.lab.recipe import StepsRecipe
from convattn.provenance import DataRecord
from evidence.card import exact, page, smoke, timing, training
from evidence.card.packed import EACH, pack, unpacked
from evidence.card.rows import Stage
from evidence.results import EVIDENCE

CPU = torch.device("cpu")


class Clock:
    """A clock that only the test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stage(tmp_path, clock):
    return Stage("some", CPU, tmp_path, seconds=100.0, tiny=True, clock=clock)


def rows(stage):
    """Reads the rows of the file."""
    return json.loads((stage.folder / f"{stage.name}.json").read_text())["rows"]


def failing(text):
    raise RuntimeError(text)


# Rows


def test_an_error_becomes_a_row_and_the_next_case_is_measured(stage):
    assert not stage.case("first", partial(failing, "too large"), impl="dense")
    assert stage.case("second", lambda: {"ms": 3.0})
    first, second = rows(stage)
    assert (first["case"], first["impl"], first["error"]) == (
        "first",
        "dense",
        "RuntimeError: too large",
    )
    assert "in failing" in first["traceback"]
    assert second == {"case": "second", "ms": 3.0, "at": 0.0}


def test_an_error_that_leaves_no_device_ends_the_stage_after_its_row(stage):
    with pytest.raises(RuntimeError, match="illegal memory access"):
        stage.case("first", partial(failing, "CUDA error: an illegal memory access"))
    assert rows(stage)[0]["error"] == "RuntimeError: CUDA error: an illegal memory access"


def test_a_stopped_stage_loses_nothing(stage):
    def stopped():
        raise KeyboardInterrupt

    for number in range(3):
        stage.case(f"case {number}", lambda: {"ms": 1.0})
        assert len(rows(stage)) == number + 1
    with pytest.raises(KeyboardInterrupt):
        stage.case("last", stopped)
    assert [row["case"] for row in rows(stage)] == ["case 0", "case 1", "case 2"]
    assert [file.name for file in stage.folder.iterdir()] == ["some.json"]


def test_no_case_begins_after_the_limit(stage, clock):
    clock.now = 100.0
    assert not stage.case("late", partial(failing, "is not called"))
    assert rows(stage) == [{"case": "late", "skipped": "no time left", "at": 100.0}]


# Images that travel


def images(train, test):
    """Draws colour images."""
    generator = torch.Generator().manual_seed(0)
    splits = []
    for count in (train, test):
        pixels = torch.randint(0, 256, (count, 3, 7, 7), generator=generator)
        splits.append(ImageSplit(pixels.to(torch.uint8), torch.arange(count) % 5))
    record = DataRecord("drawn", "the test", {"file": "0"}, {"train": train, "test": test}, "drawn")
    return ImageDataset(*splits, 5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), record)


FEW = images(6, 4)


def test_images_travel_in_parts_without_loss(tmp_path):
    data = images(EACH + 11, 13)
    sizes = pack(data, tmp_path, parts=2)
    folders = [tmp_path / "1", tmp_path / "0"]
    assert sizes == [
        sum(file.stat().st_size for file in place.iterdir()) for place in folders[::-1]
    ]
    found = unpacked(folders)
    for own, other in ((found.train, data.train), (found.test, data.test)):
        assert torch.equal(own.images, other.images)
        assert torch.equal(own.labels, other.labels)
    assert (found.record, found.num_classes) == (data.record, 5)
    assert (found.mean, found.std) == (data.mean, data.std)


def test_a_missing_part_and_changed_pixels_are_refused(tmp_path):
    pack(images(EACH + 11, 13), tmp_path, parts=2)
    message = (
        f"the train split must have {EACH + 11} images, but the parts hold {EACH}: is one missing"
    )
    with pytest.raises(DataError, match=message):
        unpacked([tmp_path / "0"])
    one, other = (tmp_path / str(part) / f"train-0000{part}.webp" for part in (0, 1))
    pack(images(11, 13), tmp_path / "more", parts=1)
    other.write_bytes((tmp_path / "more" / "0" / "train-00000.webp").read_bytes())
    assert one.exists()
    with pytest.raises(
        DataError, match="the images of the train split are not those that were packed"
    ):
        unpacked([tmp_path / "0", tmp_path / "1"])


# The plan


@pytest.fixture
def runs(monkeypatch, clock):
    """Takes the place of training: a run takes ten seconds, and leaves its files."""
    done = []

    def trained(recipe, data, output, stage):
        clock.now += 10.0
        if stage.left <= 0:
            raise TimeoutError("stopped")
        done.append((getattr(recipe.model, "mixing", recipe.name), recipe.seed))
        output.mkdir(parents=True)
        for name in training.KEPT:
            (output / name).write_text("{}")
        return SimpleNamespace(results={"test_accuracy": 0.5}, seconds=10.0, peak_memory=1)

    monkeypatch.setattr(training, "trained", trained)
    return done


def stage_of(folder, clock, seconds):
    """Makes a stage that is not tiny, and starts now."""
    return Stage("training", CPU, folder, seconds=seconds, clock=clock)


def finished(folder, part):
    """Lists the networks that were trained with each seed."""
    seeds = {}
    for place in sorted((folder / "training" / part.name).glob("*/record.json")):
        label, _, seed = place.parent.name.rpartition("-")
        seeds.setdefault(int(seed), set()).add(label)
    return seeds


TWELVE = training.PARTS[1]


def test_a_plan_that_runs_out_of_time_leaves_whole_rounds(tmp_path, clock, runs):
    """A round takes fifty seconds: five networks of ten."""
    for seconds, whole in {60: 1, 99: 1, 100: 1, 101: 2, 149: 2, 151: 3}.items():
        stage = stage_of(tmp_path / str(seconds), clock, seconds)
        training.run(stage, FEW, [TWELVE], 0, 1)
        assert finished(stage.folder, TWELVE) == {seed: set(TWELVE.runs) for seed in range(whole)}
        assert rows(stage)[-1]["skipped"] == "no time for another round"
        assert not any("error" in row for row in rows(stage))


def test_a_later_call_goes_on_and_processes_share_rounds(tmp_path, clock, runs):
    training.run(stage_of(tmp_path, clock, 101), FEW, [TWELVE], 0, 1)
    assert len(runs) == 10
    for rank in (0, 1):
        training.run(stage_of(tmp_path, clock, 101), FEW, [TWELVE], rank, 2)
    assert len(runs) == len(set(runs))
    assert [*finished(tmp_path, TWELVE)] == [0, 1, 2, 3, 4, 5]


def test_a_run_that_outlasts_the_stage_is_a_row_and_no_half_record(tmp_path, clock, runs):
    stage = stage_of(tmp_path, clock, 25)
    training.run(stage, FEW, [TWELVE], 0, 1)
    assert finished(tmp_path, TWELVE) == {0: {"attention", "hard"}}
    assert [row.get("error") for row in rows(stage)[:3]] == [None, None, "TimeoutError: stopped"]
    assert all(row["skipped"] == "no time left" for row in rows(stage)[3:5])


def test_each_part_leaves_later_ones_their_share(tmp_path, clock, runs, monkeypatch):
    asked = []
    monkeypatch.setattr(
        training, "fitted", lambda recipe, _, seconds, __: asked.append(seconds) or recipe
    )
    training.run(stage_of(tmp_path, clock, 1000), FEW, training.PARTS, 0, 1)
    headline, twelve, paper = training.PARTS
    assert [*finished(tmp_path, headline)] == [3, 4, 5, 6, 7]
    assert len(finished(tmp_path, twelve)) == 12  # from 50 s to 700 s, and a round must fit
    assert finished(tmp_path, paper) == {0: {"sa-quadratic", "resnet18"}}
    assert asked == [0.75 * 350, 0.95 * 340]


def test_epochs_and_milestones_are_fitted_to_the_time(tmp_path, monkeypatch):
    def trained(recipe, data, output, stage):
        assert recipe.training.epochs == 3
        assert (len(data.train), len(data.test)) == (*training._TRIAL[:1], 13)
        output.mkdir()
        (output / "metrics.jsonl").write_text(
            '{"images_per_second": 1}\n{"images_per_second": 500}\n'
        )

    monkeypatch.setattr(training, "trained", trained)
    data = images(2500, 13)
    fitted = training.fitted(load_recipe("resnet18"), data, 100.0, tmp_path / "trial")
    assert fitted.training.epochs == 18  # 0.9 · 100 s · 500 a second of 2,500 images
    assert isinstance(fitted.schedule, StepsRecipe)
    assert fitted.schedule.milestones == (5, 9, 15)
    with pytest.raises(TimeoutError, match="no epoch fits 1 s at 500 images a second"):
        training.fitted(load_recipe("resnet18"), data, 1.0, tmp_path / "again")


# Stages at their smallest, and the page


def first(split, count):
    """Returns the first images of a split."""
    return ImageSplit(split.images[:count], split.labels[:count])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One case or a few of each stage."""
    gc.freeze()  # as a stage does: each time begins with a collection
    folder = tmp_path_factory.mktemp("card")
    stages = {name: Stage(name, CPU, folder, 600.0, True) for name in ("smoke", "exact", "timing")}
    beside = partial(smoke.beside_cpu, CPU, partial(nn.Linear, 3, 2), nn.Module.__call__)
    stages["smoke"].case("linear", partial(beside, torch.ones(5, 3)))
    kernel = partial(smoke.kernel_of_content, CPU, 8, 4, 2, torch.float32)
    stages["smoke"].case("kernel", kernel, precision="float32")
    case = next(exact.cases(side=5))
    layer, x = case.build(), torch.randn(case.shape)
    expected, upstream = exact.reference(layer, x)
    for name, precision in exact.PRECISIONS.items():
        compare = partial(exact.compare, CPU, precision, layer, x, upstream, expected)
        stages["exact"].case(case.name, compare, precision=name)
    certified = partial(exact.certificates, CPU, False, 3, 3)
    stages["exact"].case("certificate", certified, precision="float32")
    tiny = torch.randn(1, 2, 4, 4)
    contenders = [*timing.layers(tiny, autocast=True)][:2]
    setting = {"side": 16, "channels": 400, "images": 1, "precision": "bfloat16 autocast"}
    timing.group(stages["timing"], "layer", iter(contenders), **setting)
    setting = {"side": 64, "heads": 2, "width": 8, "images": 1, "precision": "all bfloat16"}
    tokens = torch.randn(3, 1, 2, 16, 8, dtype=torch.bfloat16)
    kernels = [*timing.kernels(tokens, 4)][:2]
    timing.group(stages["timing"], "kernel", iter(kernels), **setting)
    digits = load_digits()
    few = replace(digits, train=first(digits.train, 64), test=first(digits.test, 32))
    part = replace(TWELVE, runs={name: TWELVE.runs[name] for name in ("attention", "conv")})
    # accelerate allows one precision in a process, and other tests have theirs
    AcceleratorState._reset_state(reset_partial_state=True)
    training.run(Stage("training", CPU, folder, 600.0, True), few, [part], 0, 1)
    AcceleratorState._reset_state(reset_partial_state=True)
    gc.unfreeze()
    return folder


def test_stages_measure_without_an_error(measured):
    for name in ("smoke", "exact", "timing", "training"):
        content = page.found(name, measured)
        assert page.failures(content) == "None."
        assert content["tiny"]
        assert content["hardware"]["device"] == "cpu"


def test_exactness_tells_precisions_apart(measured):
    found = {row["precision"]: row for row in page.having(page.found("exact", measured), "output")}
    limits = {"float64": 1e-13, "float32": 1e-5, "bfloat16 autocast": 0.1}
    for name, limit in limits.items():
        for part in ("output", "images", "parameters"):
            assert limit / 1e6 < found[name][part] + limit / 1e5 < limit, (name, part)
        assert found[name]["repeats"], name
    assert "float16 autocast" not in found  # on CUDA only


def test_a_wrong_layer_is_seen():
    """The negative control: a weight that is a thousandth off."""
    case = next(exact.cases(side=5))
    layer, x = case.build(), torch.randn(case.shape)
    expected, upstream = exact.reference(layer, x)
    with torch.no_grad():
        next(layer.values.parameters()).mul_(1.001)
    found = exact.compare(CPU, exact.PRECISIONS["float64"], layer, x, upstream, expected)
    assert found["output"] > 1e-4


def test_a_contender_has_times_kernels_and_the_ratio_to_the_first(measured):
    content = page.found("timing", measured)
    first, second = [row for row in content["rows"] if row["case"] == "layer"]
    assert first["contender"] == timing.CONVOLUTION
    assert "forward_ratio" not in first
    assert second["path"] == "separable"
    for word in ("forward", "step"):
        assert second[f"{word}_kernels"] > first[f"{word}_kernels"] > 0
        assert second[f"{word}_ratio"] > 0


def test_all_kernels_with_learned_axial_scores_compute_the_same(monkeypatch):
    """FlexAttention needs a device: what it computes stands in for it, with its function of scores."""

    def dense(query, key, value, score_mod):
        heads, places = torch.arange(query.shape[1])[:, None, None], torch.arange(query.shape[2])
        scores = query @ key.mT * query.shape[-1] ** -0.5
        return score_mod(scores, heads, heads, places[:, None], places).softmax(-1) @ value

    monkeypatch.setattr(timing, "flex_attention", dense)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    side, x = 5, torch.randn(3, 1, 2, 25, 8, dtype=torch.float64)
    encoding = LearnedAxial(2, 2, extent=side).double()
    flex = timing.flex_kernel(2, side).double()
    tables = encoding.axis_tables([Axis(range(side), side)] * 2, torch.float64)
    with torch.no_grad():
        for own, table in zip(flex.learns, tables, strict=True):
            own.copy_(table)
    expected = flex(x)
    assert expected.requires_grad
    channels = partial(timing.with_channels, position_channels)
    for way in (timing.with_mask, channels):
        found = timing.Kernel(partial(way, side), encoding)(x)
        assert (found - expected).abs().max() < 64 * torch.finfo(torch.float64).eps


def test_kernels_of_torch_are_counted_and_named():
    with smoke.Kernels() as kernels:
        nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 8), scale=1.0)
    assert [call["query"] for call in kernels.calls] == [[1, 2, 5, 8]]
    assert kernels.calls[0]["kernel"] in {"math", "flash_attention"}


def shown(folder):
    """Words everything that the page takes from the records of a folder."""
    read = {name: page.found(name, folder) for name in ("smoke", "exact", "timing", "training")}
    runs = page.trained("twelve", folder)
    return {
        "aims": page.aims(read["timing"], page.rate(runs)),
        "differences": page.differences(read["smoke"]),
        "kernels": page.listing(read["smoke"], "case", "precision", "kernel"),
        "exactness": page.exactness(read["exact"]),
        "verdicts": page.listing(read["exact"], "case", "precision", "verdicts"),
        "layers": page.times(read["timing"], "layer"),
        "attention": page.times(read["timing"], "kernel"),
        "ratios": page.layer_ratios(read["timing"]),
        "accuracies": page.accuracies(runs),
        "failures": page.failures(*read.values()),
        "where": page.where(read["timing"]),
        "runs": page.runs_in_words(runs),
    }


def test_records_fill_the_page(measured, tmp_path):
    empty = shown(tmp_path)
    for name, text in empty.items():
        assert page.NOT_MEASURED in text, name
    filled = shown(measured)
    for name, text in filled.items():
        if name != "aims":  # it has a line for what only CUDA measures
            assert page.NOT_MEASURED not in text, name
    assert filled["aims"].count(page.NOT_MEASURED) < empty["aims"].count(page.NOT_MEASURED)
    assert "n = 1: too few for an interval" in filled["accuracies"]
    assert "torch " in filled["where"]
    assert "bf16" in filled["runs"]


def test_the_last_part_of_a_ratio_is_that_of_flexattention():
    """A made-up record: the larger of both batches counts, and FlexAttention divides."""
    cell = {"precision": "bfloat16 autocast", "forward_ms": 1.0, "step_ms": 1.0}
    layer = {**cell, "case": "layer", "contender": "quadratic, auto", "channels": 400}
    kernel = {**cell, "case": "kernel", "side": 64}
    content = {
        "rows": [
            {**layer, "forward_ratio": 1.5, "step_ratio": 1.25},
            {**layer, "forward_ratio": 1.75, "step_ratio": 1.0},
            {**kernel, "contender": page.ONE_HOT, "forward_ratio": 1.25, "step_ratio": 1.5},
            {**kernel, "contender": page.FLEX, "forward_ratio": 5.0, "step_ratio": 4.0},
            {**layer, "precision": "TF32", "forward_ratio": 9.0, "step_ratio": 9.0},
        ]
    }
    assert page.layer_ratios(content) == "1.75 times and 1.25 times"
    lines = page.aims(content, "9,100").splitlines()
    assert lines[2].endswith("| ≤ 2.0, 2.0 | 1.75 | 1.25 |")
    assert lines[7].endswith("| ≤ 0.5, 0.5 | 0.25 | 0.38 |")
    assert lines[-1].endswith("| ≥ 9,000 | – | 9,100 |")


def test_no_record_of_a_cpu_is_committed():
    for file in (EVIDENCE / "card").glob("*.json"):
        content = json.loads(file.read_text())
        assert not content["tiny"]
        assert content["hardware"]["device"] == "cuda"
