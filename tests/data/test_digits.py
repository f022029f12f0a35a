import sys

import pytest
import torch

from convattn.data import load_digits
from convattn.errors import MissingDependencyError


def test_split_is_fixed_and_complete():
    digits = load_digits()
    assert digits.record.counts == {"train": 1437, "test": 360}
    assert digits.record.hashes == {
        "train": "7531db42dd3ff2d2862222a0b92a7132eab114482b8de0e522adc4d755f9686c",
        "test": "a2fc2790f951761efa3de96d98e5fd3fec1bfbc4ef550eb2193c8e5117cf4c96",
    }
    assert (digits.image_shape, digits.num_classes) == ((1, 8, 8), 10)


def test_every_class_is_in_both_splits_in_proportion():
    digits = load_digits()
    train, test = digits.train.labels.bincount(), digits.test.labels.bincount()
    assert (test - (train + test) * 360 / 1797).abs().max() < 1


def test_grey_levels_are_recovered_exactly():
    from sklearn import datasets

    digits = load_digits()
    pixels = torch.cat([digits.train.images, digits.test.images]).reshape(1797, 64)
    levels = (pixels.double() * 16 / 255).round().to(torch.int64)
    original = torch.from_numpy(datasets.load_digits().data).to(torch.int64)
    assert sorted(levels.tolist()) == sorted(original.tolist())


def test_statistics_are_those_of_the_training_pixels():
    digits = load_digits()
    scaled = digits.train.images.double() / 255
    assert (digits.mean, digits.std) == ((scaled.mean().item(),), (scaled.std().item(),))


def test_missing_scikit_learn_says_how_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        MissingDependencyError, match=r'needs scikit-learn.*pip install "convattn\[train\]"'
    ):
        load_digits()
