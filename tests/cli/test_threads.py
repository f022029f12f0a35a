"""Threads of a command: as the environment says, and otherwise by the work."""

import os
import subprocess
import sys

import pytest
import torch

from convattn.cli.threads import one_thread
from convattn.lab import load_recipe
from convattn.lab.run_process import threads_given

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No variables, and three threads."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", VARIABLES)
def test_environment_comes_first(monkeypatch, name):
    monkeypatch.setenv(name, "2")
    assert threads_given() == 2
    with one_thread():
        assert torch.get_num_threads() == 3


@pytest.mark.parametrize("text", ["", "many", "0", "-1"])
def test_what_is_no_number_of_threads_counts_for_nothing(monkeypatch, text):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads_given() is None


def test_small_work_takes_one_thread_and_gives_the_others_back():
    for small, threads in ((True, 1), (False, 3)):
        with one_thread(small):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 3


def test_only_tiny_images_are_small_work():
    assert [
        load_recipe("sa-quadratic", scale=scale).is_small for scale in ("tiny", "small", "paper")
    ] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(("given", "kept"), [(None, "passive"), ("active", "active")])
def test_threads_sleep_where_they_wait_unless_told_otherwise(given, kept):
    program = (
        "import os, sys; from convattn.cli import main; assert 'torch' not in sys.modules;"
        " main(['--version']); print(os.environ['OMP_WAIT_POLICY'])"
    )
    bare = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    env = bare if given is None else {**bare, "OMP_WAIT_POLICY": given}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env
    )
    assert found.stdout.splitlines()[-1] == kept
