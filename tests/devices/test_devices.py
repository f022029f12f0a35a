"""What runs on a GPU makes no tensor on the CPU by mistake, found without one: see elsewhere.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock

ROOT = Path(__file__).parents[2]
FIRST, LAST = "quadratic, whole image", "page"


PROGRAM = "from tests.devices import cases, counted; cases.main(); counted.main()"


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """What a process writes that is alone with the device, which stays for good; workers of one test run share it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    written = folder / "devices.txt"
    with FileLock(folder / "devices.lock"):
        if not written.exists():
            path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
            ran = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", PROGRAM],
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
            written.write_text(ran.stdout)
    return written.read_text().splitlines()


@pytest.fixture(scope="module")
def compared(lines):
    """A line for each case, of how far the device is from the CPU."""
    return [line for line in map(json.loads, lines[1:]) if "difference" in line]


@pytest.fixture(scope="module")
def counts(lines):
    """What each module starts on the device, by case."""
    return {line["case"]: line for line in map(json.loads, lines[1:]) if "forward" in line}


def test_another_device_computes_the_same(compared):
    assert [line["case"] for line in compared][:: len(compared) - 1] == [FIRST, LAST]
    budget = (
        64 * torch.finfo(torch.float32).eps
    )  # other code may run there, in another order of sums
    assert [line for line in compared if line["difference"] > budget * max(1.0, line["size"])] == []


def test_a_tensor_on_the_wrong_device_is_found(lines):
    assert lines[0] == (
        "aten::add: expected all tensors to be on the same device, but found elsewhere and cpu"
    )


def test_layers_of_position_start_few_kernels(counts):
    """A kernel on a GPU takes microseconds to start, however small it is."""
    seen = 0
    for name, count in counts.items():
        if name.startswith(("quadratic", "learned")):
            assert (count["forward"] <= 30, count["step"] <= 80) == (True, True), (name, count)
            seen += 1
    assert seen == 6
    assert counts["shift"]["forward"] == 1  # a convolution
    assert counts["speed run"]["step"] <= 600


def test_content_starts_as_many_kernels_for_any_number_of_images(counts):
    few = {name: count for name, count in counts.items() if name.endswith(" 2 images")}
    assert len(few) == 8
    for name, count in few.items():
        more = counts[name.replace(" 2 images", " 5 images")]
        assert (more["forward"], more["step"]) == (count["forward"], count["step"]), name


def test_no_call_waits_for_the_device_or_copies_to_it(counts):
    for name, count in counts.items():
        assert (count["forward crossings"], count["step crossings"]) == ({}, {}), name


def test_what_reaches_the_fused_kernel_is_what_its_fast_roads_take(counts):
    for name, count in counts.items():
        if name.startswith(("content", "gate")):
            assert count["strides"] == [1], name
            assert [width for width in count["widths"] if width % 8] == [], name
            learns = name.startswith(("content, distance", "content, gen", "content, shift"))
            assert count["learning masks"] == learns, name
