"""What runs on a GPU makes no tensor on the CPU by mistake, found without one: see elsewhere.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FIRST, LAST = "quadratic, whole image", "page"


@pytest.fixture(scope="module")
def written():
    """What a tensor on the wrong device meets, and a line for each case: from a process, as a device stays for good."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.devices.cases"]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_another_device_computes_the_same(written):
    lines = [json.loads(line) for line in written[1:]]
    assert [line["case"] for line in lines][:: len(lines) - 1] == [FIRST, LAST]
    budget = (
        64 * torch.finfo(torch.float32).eps
    )  # other code may run there, in another order of sums
    assert [line for line in lines if line["difference"] > budget * max(1.0, line["size"])] == []


def test_a_tensor_on_the_wrong_device_is_found(written):
    assert written[0] == (
        "aten::add: expected all tensors to be on the same device, but found elsewhere and cpu"
    )
