"""The device that these tests are about, and float32 in full unless a test says otherwise."""

import os

import pytest
import torch
from tests.testing.float32 import float32_by

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself with it alone


def pytest_itemcollected(item):
    item.add_marker(pytest.mark.cuda)


@pytest.fixture(scope="session")
def device():
    return torch.device(os.environ.get("DEVICE", "cuda"))


@pytest.fixture(autouse=True)
def full_precision():
    with float32_by("ieee", "ieee"):
        yield
