"""Files of images for an analysis."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from convattn.errors import DataError
from convattn.networks.images import open_images


def unused():
    raise AssertionError("no pictures")


@pytest.mark.parametrize(
    ("kind", "dtype"), [(">f4", torch.float32), (">i2", torch.int64), ("<f8", torch.float32)]
)
def test_arrays_are_read_in_any_order_of_bytes(kind, dtype, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(210).reshape(2, 3, 5, 7).astype(kind))
    made = open_images(tmp_path / "a.npy", unused)
    assert made.dtype == dtype
    assert torch.equal(made, torch.arange(210).view(2, 3, 5, 7).to(dtype))


@pytest.mark.parametrize("shape", [(6, 0, 32, 3), (0, 32, 32, 3)])
def test_arrays_without_pixels_are_refused(shape, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(shape, dtype=np.uint8))
    with pytest.raises(
        DataError, match=r"must hold numbers of at least one image, but is uint8 of shape"
    ):
        open_images(tmp_path / "a.npy", unused)


@pytest.mark.parametrize("sizes", ["-1", str(10**12), str(10**23), "True"])
def test_arrays_of_impossible_sizes_are_refused(sizes, tmp_path):
    header = (
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({sizes}, 3, 5, 5), }}".ljust(117)
        + "\n"
    )
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + header.encode() + bytes(1200))
    with pytest.raises(DataError, match=r"a\.npy: not a readable array of numpy"):
        open_images(tmp_path / "a.npy", unused)


def test_rows_without_a_picture_are_named(tmp_path):
    rows = [{"bytes": None, "path": "a.png"}]
    parquet.write_table(pa.table({"image": rows}), tmp_path / "a.parquet")
    with pytest.raises(
        DataError, match=r"cannot read the image .*a\.parquet, row 0: no picture, but a NoneType"
    ):
        open_images(tmp_path / "a.parquet", lambda: unused)[0]
