"""Files of images for an analysis."""

import numpy as np
import pytest
import torch

from convattn.errors import DataError
from convattn.networks.image_files import open_images


def unused():
    raise AssertionError("no pictures")


@pytest.mark.parametrize(("kind", "dtype"), [(">f4", torch.float32), (">i2", torch.int64), ("<f8", torch.float32)])
def test_arrays_are_read_in_any_order_of_bytes(kind, dtype, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(210).reshape(2, 3, 5, 7).astype(kind))
    made = open_images(tmp_path / "a.npy", unused)
    assert made.dtype == dtype
    assert torch.equal(made, torch.arange(210).view(2, 3, 5, 7).to(dtype))


@pytest.mark.parametrize("shape", [(6, 0, 32, 3), (0, 32, 32, 3)])
def test_arrays_without_pixels_are_refused(shape, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(shape, dtype=np.uint8))
    with pytest.raises(DataError, match=r"must hold numbers of at least one image, but is uint8 of shape"):
        open_images(tmp_path / "a.npy", unused)
