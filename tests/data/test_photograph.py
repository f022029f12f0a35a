import sys

import pytest
import torch

from convattn.data import load_photograph
from convattn.errors import MissingDependencyError, UnknownNameError


@pytest.mark.parametrize("name", ["china", "flower"])
def test_photograph_is_the_one_that_scikit_learn_ships(name):
    from sklearn import datasets

    photograph = load_photograph(name)
    original = datasets.load_sample_image(f"{name}.jpg")
    assert photograph.pixels.shape == (3, 427, 640)
    for row, col in ((0, 0), (213, 101), (426, 639)):
        assert photograph.pixels[:, row, col].tolist() == original[row, col].tolist()
    assert photograph.pixels.sum(dtype=torch.int64).item() == original.sum()
    assert "CC BY 2.0" in photograph.credit


def test_unknown_photograph_names_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown photograph 'chino': did you mean 'china'"):
        load_photograph("chino")


def test_missing_scikit_learn_says_how_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingDependencyError, match=r'needs scikit-learn.*pip install "convattn\[train\]"'):
        load_photograph()
