"""A user's own images: from folders of pictures and from tensors, split, recorded, and trained on by every command."""

import dataclasses
import hashlib
import shlex
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.cli.command import run
from tests.lab.tiny import tiny_recipe

from convattn.cli.output import recipe_changes
from convattn.data import dataset_from_tensors, load_folder, normalise
from convattn.encodings import registry
from convattn.errors import ArgumentError, DataError
from convattn.lab import load_recipe, train
from convattn.lab.recipe import command_for
from convattn.lab.study_plan import plan_runs
from convattn.networks.images import class_names, preparation
from convattn.networks.loading import load_with_source
from convattn.provenance import RunRecord

CLASSES = ("cat", "dog", "owl")
SMALL = "--set model.width=8 --set model.depth=1 --set model.heads=2 --set model.ffn=8"
SMALL += " --set training.epochs=1 --set training.batch_size=5"
MODULE = "rings_of_a_test"
RING = """
import torch, convattn


class Ring(convattn.Encoding):
    def score(self, displacement):
        far = -displacement.norm(dim=-1)
        return far.expand(self.num_heads, *far.shape)


convattn.register_encoding("ring_of_a_test", Ring)
"""


def draw(folder: Path, count: int, *, classes=CLASSES, grey=False) -> None:
    """Writes pictures of several sizes, each class brighter in one channel."""
    generator = np.random.default_rng(count)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for row in range(count):
            levels = generator.integers(0, 120, (11 + row, 7, 3), dtype=np.uint8)
            levels[..., number] += 100
            picture = Image.fromarray(levels)
            picture = picture.convert("L") if grey else picture
            picture.save(folder / name / f"{row}.png")


def words_of_a_study(changes: dict[str, str]) -> list[str]:
    """Returns the words of the command that repeats a run of a study."""
    (run_of_study,) = plan_runs(
        ["digits-quadratic"], "study", seeds=[1], scale=None, overrides=changes, grid={}
    )
    return shlex.split(command_for(run_of_study.recipe))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_folder_is_split_by_class_and_recorded(place):
    draw(place / "pets", 11)
    (place / "pets/.hidden").mkdir()
    (place / "pets/cat/.checkpoints").mkdir()
    for hidden in ("._1.jpg", ".checkpoints/1.jpg"):
        (place / "pets/cat" / hidden).write_bytes(b"no picture")
    data = load_folder(place / "pets", size=7)
    assert data.image_shape == (3, 7, 7)
    assert (data.num_classes, data.classes) == (3, CLASSES)
    assert data.record.counts == {"train": 27, "test": 6}
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.record.hashes == {"train": data.train.sha256(), "test": data.test.sha256()}
    assert data.record.split == "one in 5 of each class to test: torch.randperm, seed 0"
    assert data.name == f"folder pets (train {data.train.sha256()[:12]})"
    assert load_folder(place / "pets", size=7).record == data.record
    for channel, mean, deviation in zip(range(3), data.mean, data.std, strict=True):
        levels = (data.train.images[:, channel].double() / 255).flatten().tolist()
        rounding = 256 * 2**-52  # sums of 256 shares, each of which was rounded twice
        assert abs(mean - statistics.fmean(levels)) < rounding
        assert abs(deviation - statistics.pstdev(levels)) < rounding / deviation


def test_folders_to_train_and_to_test_are_kept_apart_and_grey_stays_grey(place):
    draw(place / "train", 3, grey=True)
    for name in ("test", "val"):
        draw(place / name, 2, classes=CLASSES[1:], grey=True)
        data = load_folder(place)
        assert data.image_shape == (1, 32, 32)
        assert data.record.counts == {"train": 9, "test": 4}
        assert data.test.labels.tolist() == [1, 1, 2, 2]
        assert data.record.split == "as given"
        (place / name).rename(place / f"{name} done")
    (place / "val done").rename(place / "val")
    (place / "test").mkdir()
    Image.new("L", (5, 5), 7).save(place / "test/1.png")
    assert load_folder(place).record.counts == {"train": 9, "test": 4}
    Image.new("RGB", (5, 5), (1, 2, 3)).save(place / "train/cat/colour.png")
    assert load_folder(place / "train").image_shape == (3, 32, 32)


def test_pictures_are_cropped_at_the_middle(place):
    levels = np.zeros((5, 11), np.uint8)
    levels[:, 3:8] = np.arange(25).reshape(5, 5)
    for name in CLASSES[:2]:
        (place / name).mkdir()
        for row in range(2):
            Image.fromarray(levels).save(place / name / f"{row}.png")
    data = load_folder(place, size=5)
    assert torch.equal(data.train.images[0, 0], torch.arange(25, dtype=torch.uint8).view(5, 5))


@pytest.mark.parametrize("size", [0, -3, 8.5, "8"])
def test_sizes_that_pictures_cannot_have_are_refused(place, size, without_type_checks):
    with pytest.raises(ArgumentError, match="size must be an integer of at least 1, but is"):
        load_folder(place, size=size)


def test_folders_that_say_no_classes_are_refused(place):
    with pytest.raises(ArgumentError, match="path must be a folder of pictures, but is 'none'"):
        load_folder("none")
    with pytest.raises(DataError, match="for each of two or more classes, but has 0 folders"):
        load_folder(place)
    draw(place, 1)
    with pytest.raises(DataError, match="class 0 has one image: it needs two, one of them to test"):
        load_folder(place)
    (place / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no images"):
        load_folder(place)
    draw(place / "whole/train", 2)
    draw(place / "whole/test", 2, classes=("cow",))
    with pytest.raises(DataError, match=r"cow is a class that .*train does not have"):
        load_folder(place / "whole")


def test_tensors_make_a_data_set(without_type_checks):
    images, labels = torch.rand(13, 2, 5, 3), torch.arange(13) % 3
    data = dataset_from_tensors(images, labels, name="waves", classes=CLASSES)
    assert data.record.counts == {"train": 10, "test": 3}
    assert data.preparation is None  # not square
    given = dataset_from_tensors(
        images.mul(255).round().byte(), labels.int(), test=(images, labels)
    )
    assert torch.equal(given.train.images, given.test.images)
    assert given.classes == ("0", "1", "2")
    wrong = [
        (images * 2, labels, r"images must be bytes, or .*float32 of shape \(13, 2, 5, 3\) from"),
        (images[0], labels, "images must be bytes, or"),
        (images, labels / 2, "labels must be a whole number for each image, but are torch.float32"),
        (images, labels[:, None], r"labels must be .*of shape \(13, 1\)"),
        (images[:0], labels[:0], "images must be a tensor that is not empty"),
        (images.numpy(), labels, "images must be a tensor that is not empty"),
        (images, labels.tolist(), "labels must be a tensor that is not empty"),
    ]
    for pixels, classes, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            dataset_from_tensors(pixels, classes)
    for name in ("digits", "cifar10 (mine)"):
        with pytest.raises(ArgumentError, match=r"name must be a name of your own, .* but is"):
            dataset_from_tensors(images, labels, name=name)
    images[:, 1] = 0.7
    with pytest.raises(
        DataError, match=r"training images must vary .* of channel 1, from 0, are the"
    ):
        dataset_from_tensors(images, labels)


def test_every_command_takes_a_folder_and_the_run_says_how_its_pictures_are_prepared(place, capsys):
    draw(place / "pets", 6)
    assert run(f"train digits-quadratic --data pets -o run {SMALL} --set data.size=8") == 0
    record = RunRecord.load("run/record.json")
    assert record.data == load_folder("pets", size=8).record
    assert "--set data.name=folder --set data.folder=pets" in record.command
    assert class_names(Path("run")) == CLASSES
    data, picture = load_folder("pets", size=8), Image.open("pets/dog/0.png")
    image = preparation(load_with_source("run"))(picture)
    small = picture.resize((8, 8), Image.Resampling.BICUBIC, box=(0, 2, 7, 9))
    pixels = torch.from_numpy(np.array(small)).movedim(2, 0)[None]
    assert torch.equal(image, normalise(pixels, data.mean, data.std)[0])
    assert run("view run --images pets -o page.html --limit 2 --json") == 0
    assert run("train digits-quadratic --data none") == 2
    assert "convattn: --data must be a folder that exists, but is 'none'" in capsys.readouterr().err
    changes = recipe_changes([], [], Path("pets"))
    assert {"data.name=folder", "data.folder=pets"} <= {*words_of_a_study(changes)}


def test_a_recipe_of_a_folder_names_it():
    for changes, message in (
        ({"data.name": "folder"}, "folder must be the folder of the pictures, but is None"),
        (
            {"data.name": "digits", "data.folder": "pets"},
            "folder must be left out for digits; .* by --data FOLDER, but is 'pets'",
        ),
        ({"data.size": "8"}, "size must be left out but for a folder of pictures, but is 8"),
    ):
        with pytest.raises(ArgumentError, match=message):
            load_recipe("sa-quadratic", overrides=changes)


def test_encodings_of_ones_own_are_imported_from_the_current_folder(place, capsys, monkeypatch):
    own = f"{SMALL} --set model.encoding=ring_of_a_test"
    for command in ("train", "study"):
        assert run(f"{command} digits-quadratic {own} -o early") == 2
        error = capsys.readouterr().err
        assert "by convattn.register_encoding('ring_of_a_test', CLASS); --import MODULE" in error
        assert not Path("early").exists()
    assert run(f"train digits-quadratic {own} --import no_such_module") == 2
    assert (
        "convattn: --import must be a module that can be imported, by its name"
        in capsys.readouterr().err
    )
    Path(f"{MODULE}.py").write_text(RING)
    own += f" --import {MODULE}"
    assert run(f"train digits-quadratic --seed 1 -o run {own}") == 0
    record = RunRecord.load("run/record.json")
    assert "--set imports=rings_of_a_test" in record.command
    digest = hashlib.sha256(RING.encode()).hexdigest()
    assert record.versions[MODULE] == f"sha256 {digest}"
    assert "imports=rings_of_a_test" in words_of_a_study(recipe_changes([], [MODULE], None))
    assert run("reproduce fig2 --runs run --import no_such_module") == 2
    assert run("certify run run --import rings_of_a_test --json") == 0
    monkeypatch.delitem(registry._known, "ring_of_a_test")
    assert run("certify run run") == 2
    assert "cannot be built: unknown encoding" in (error := capsys.readouterr().err)
    assert error.endswith("CLASS); --import MODULE does that\n")


@pytest.mark.parametrize("changes", [{}, {"name": "folder", "folder": "pictures"}])
def test_a_record_says_that_its_images_came_from_python(changes):
    data = dataset_from_tensors(torch.rand(20, 1, 6, 6), torch.arange(20) % 2)
    recipe = tiny_recipe(epochs=1)
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **changes))
    record = train(recipe, data=data, progress=False)
    words = "the command's data: images were given in Python in place of the recipe's"
    assert words in record.not_covered
