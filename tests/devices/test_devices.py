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


def lines_of(module):
    """Runs a module in a process of its own, as a device stays for good, and returns what it writes."""
    command = [sys.executable, "-W", "ignore", "-m", module]
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


@pytest.fixture(scope="module")
def written():
    """What a tensor on the wrong device meets, and a line for each case."""
    return lines_of("tests.devices.cases")


@pytest.fixture(scope="module")
def counts():
    """What each module starts on the device, by case."""
    found = {}
    for line in lines_of("tests.devices.counted"):
        count = json.loads(line)
        found[count.pop("case")] = count
    return found


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


def test_layers_of_position_start_few_kernels(counts):
    """A kernel on a GPU takes microseconds to start, however small it is."""
    seen = 0
    for name, count in counts.items():
        if name.startswith(("quadratic", "learned")):
            assert (count["forward"] <= 30, count["step"] <= 80) == (True, True), (name, count)
            seen += 1
    assert seen == 12
    assert counts["shift"]["forward"] == 1  # a convolution
    assert counts["speed run"]["step"] <= 600


def test_content_starts_as_many_kernels_for_any_number_of_images(counts):
    few = {name: count for name, count in counts.items() if name.endswith(" 2 images")}
    assert len(few) == 10
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
