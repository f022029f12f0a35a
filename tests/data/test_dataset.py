import re

import pytest
import torch

from convattn.data import ImageDataset, ImageSplit
from convattn.errors import ArgumentError, DataError
from convattn.provenance import DataRecord

RECORD = DataRecord("made", "here", {}, {}, "none")


def split(labels, *, channels=3, rows=5, cols=7):
    images = torch.arange(len(labels) * channels * rows * cols).remainder(251).to(torch.uint8)
    return ImageSplit(
        images.reshape(-1, channels, rows, cols), torch.tensor(labels, dtype=torch.int64)
    )


def test_hash_depends_on_pixels_and_on_labels():
    first = split([0, 1])
    other_pixels = ImageSplit(first.images + 1, first.labels)
    other_labels = ImageSplit(first.images, first.labels.flip(0))
    assert first.sha256() == split([0, 1]).sha256()
    assert len({first.sha256(), other_pixels.sha256(), other_labels.sha256()}) == 3


def test_held_out_images_are_some_of_the_training_images_each_once():
    train, record = (
        split([0, 1, 2, 0, 1, 2, 0]),
        DataRecord("made", "here", {"file": "abc"}, {"train": 7}, "none"),
    )
    data = ImageDataset(train, split([2, 2]), 3, (0.0,) * 3, (1.0,) * 3, record)
    held = data.held_out(3)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(held.test.images, train.images[order[:3]])
    assert torch.equal(held.test.labels, train.labels[order[:3]])
    left = [row for row in range(7) if row not in order[:3].tolist()]
    assert torch.equal(held.train.images, train.images[left])
    assert torch.equal(held.train.labels, train.labels[left])
    assert held.record.counts == {"train": 4, "validation": 3}
    assert held.record.hashes == {"file": "abc", "validation": held.test.sha256()}
    assert held.record.split == "none; 3 training images held out: torch.randperm, seed 0"
    assert data.held_out(3).test.sha256() == held.test.sha256()
    assert data.record is record
    for count in (-2, 0, 7):
        with pytest.raises(
            ArgumentError, match=rf"^held_out must be from 1 to 6, .*, but is {count}$"
        ):
            data.held_out(count)


def test_hash_does_not_depend_on_memory_layout():
    first = split([0, 1])
    strided = ImageSplit(first.images.to(memory_format=torch.channels_last), first.labels)
    assert not strided.images.is_contiguous()
    assert strided.sha256() == first.sha256()


@pytest.mark.parametrize(("images", "labels"), [(0, 0), (2, 3)])
def test_split_needs_as_many_labels_as_images(images, labels):
    with pytest.raises(DataError, match=re.escape(f"it has {images} images and {labels} labels")):
        ImageSplit(
            torch.zeros(images, 3, 5, 7, dtype=torch.uint8), torch.zeros(labels, dtype=torch.int64)
        )


def test_label_out_of_range_names_the_row():
    expected = r"made, test split: row 1: label must be from 0 to 1, but is 2"
    with pytest.raises(DataError, match=expected):
        ImageDataset(split([0, 1]), split([0, 2]), 2, (0.5,) * 3, (0.5,) * 3, RECORD)


def test_splits_must_hold_images_of_one_shape():
    expected = re.escape("train has (3, 5, 7) and test (3, 7, 5)")
    with pytest.raises(DataError, match=expected):
        ImageDataset(split([0]), split([0], rows=7, cols=5), 1, (0.5,) * 3, (0.5,) * 3, RECORD)


def test_dataset_says_its_name_and_shape():
    dataset = ImageDataset(split([0, 1]), split([1]), 2, (0.5,) * 3, (0.5,) * 3, RECORD)
    assert (dataset.name, dataset.image_shape, len(dataset.train)) == ("made", (3, 5, 7), 2)
    assert dataset.train.to("cpu").sha256() == dataset.train.sha256()
