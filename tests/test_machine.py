"""What the suite takes of a machine that nobody here has seen."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests import machine

ROOT = Path(__file__).parents[1]
GIB = 2**30


@pytest.mark.parametrize(
    ("cores", "memory", "workers"),
    [(64, 64, 16), (64, 24, 9), (11, 512, 11), (2, 24, 2), (7, 2, 1), (3, 0, 1)],
)
def test_workers_are_as_many_as_cores_and_memory_allow(cores, memory, workers):
    assert machine.count_workers(cores, memory * GIB) == workers


@pytest.mark.parametrize(
    ("limits", "cores", "memory"),
    [
        ({}, 7, 13),
        ({"cpu.max": "max 100000", "memory.max": "max"}, 7, 13),
        ({"cpu.max": "250000 100000", "memory.max": str(5 * GIB)}, 3, 5),
        ({"cpu.max": "1700000 100000", "memory.max": str(17 * GIB)}, 7, 13),
    ],
)
def test_limits_of_a_container_count(monkeypatch, limits, cores, memory):
    monkeypatch.setattr(machine, "_limit", lambda name: limits.get(name, ""))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    monkeypatch.setattr(
        machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=13 * GIB)
    )
    assert (machine._cores(), machine._memory()) == (cores, memory * GIB)


PROBE = """
import os, pytest
from tests.machine import do_without

def test_devices():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""

@pytest.mark.cuda
def test_cuda():
    hidden = os.environ.get("DEVICE") == "cpu"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("" if hidden else "3")

def test_lacking():
    do_without("there is no loom")
"""
CONFTEST = """
import os, sys
from types import SimpleNamespace
from tests import machine

sees = SimpleNamespace(is_available=lambda: os.environ["CARDS"] == "1")
sys.modules["torch"] = SimpleNamespace(cuda=sees)
machine.MOST_WORKERS = 1
def pytest_addoption(pluginmanager):
    pluginmanager.register(machine)
"""


@pytest.mark.parametrize(
    ("option", "environment", "code", "lines"),
    [
        (
            "-ra",
            {},
            0,
            ["not run: 1 tests: there is no loom\n=", "1 passed, 1 skipped, 1 deselected"],
        ),
        ("-mcuda", {}, 0, ["1 passed, 2 deselected"]),
        ("-mcuda", {"CARDS": "0"}, 4, ["ERROR: these tests need a CUDA device, and torch finds"]),
        ("-mcuda", {"CARDS": "0", "DEVICE": "cpu"}, 0, ["1 passed, 2 deselected"]),
        ("-ra", {"DEVICE": "cpu"}, 0, ["2 passed, 1 skipped"]),
        ("-mcuda", {"DEVICE": "gpu"}, 4, ["ERROR: DEVICE must be cpu or cuda, but is 'gpu'"]),
        (
            "-ra",
            {"CI": "true"},
            1,
            ["test_lacking - Failed: there is no loom", "1 failed, 1 passed"],
        ),
        ("-nauto", {}, 0, ["workers: 1 (", "not run: 1 tests: there is no loom\n="]),
    ],
    ids=["plain", "cuda", "no card", "on the CPU", "all on the CPU", "no device", "CI", "workers"],
)
def test_the_suite_says_what_it_leaves_out(tmp_path, monkeypatch, option, environment, code, lines):
    for name in ("PYTEST_XDIST_AUTO_NUM_WORKERS", "DEVICE"):
        monkeypatch.delenv(name, raising=False)
    usual = {"CI": "", "CARDS": "1", "CUDA_VISIBLE_DEVICES": "3", "PYTHONPATH": str(ROOT)}
    usual["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name, value in (usual | environment).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "test_probe.py").write_text(PROBE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = cuda\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    plugins = ["-p", "no:cacheprovider", *(["-p", "xdist"] if option == "-nauto" else [])]
    command = [sys.executable, "-m", "pytest", *plugins, option, tmp_path]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    output = finished.stdout + finished.stderr
    assert finished.returncode == code, output
    assert all(line in output for line in lines), output
