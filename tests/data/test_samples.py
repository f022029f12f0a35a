"""The embedded images of CIFAR-10, and the script that makes their files."""

import runpy
from importlib import resources
from pathlib import Path

import torch

from convattn.data import CIFAR10_MEAN, CIFAR10_STD, ImageDataset, ImageSplit, load_samples
from convattn.networks import datasets as samples
from convattn.provenance import DataRecord

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "samples.py"))
MOST_BYTES = 60 * 1024
PIXELS = "128449f9843e514f92b6cfeee38799309ca9ae79edf66d3edb3c211f567ad4dc"
"""SHA-256 of pixels and labels."""


def test_two_images_of_each_class_with_their_names_and_source():
    found = load_samples()
    assert found.split.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert found.classes == SCRIPT["CLASSES"]
    assert len(set(found.rows)) == len(found.split) == 20
    assert "Krizhevsky" in found.credit
    assert found.split.sha256() == PIXELS


def test_files_are_small():
    folder = resources.files("convattn.networks")
    sizes = [len((folder / name).read_bytes()) for name in (samples.IMAGES, samples.DESCRIPTION)]
    assert sum(sizes) <= MOST_BYTES


def test_script_writes_the_first_of_each_class_without_loss(tmp_path, monkeypatch):
    labels = torch.tensor([*range(9, -1, -1), 3, *range(10)])
    images = torch.randint(256, (len(labels), 3, 32, 32), dtype=torch.uint8)
    hashes = {"test-00000-of-00001.parquet": "0" * 64}
    record = DataRecord("many", "made here", hashes, {"train": 21, "test": 21}, "the same twice")
    split = ImageSplit(images, labels)
    SCRIPT["write"](ImageDataset(split, split, 10, CIFAR10_MEAN, CIFAR10_STD, record), tmp_path)
    monkeypatch.setattr("convattn.networks.datasets.resources.files", lambda _: tmp_path)
    found = load_samples()
    assert found.rows[:4] == (9, 11, 8, 12)
    assert found.rows[6:8] == (6, 10)
    assert torch.equal(found.split.images, images[list(found.rows)])
    assert torch.equal(found.split.labels, labels[list(found.rows)])
