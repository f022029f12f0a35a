"""What all tests share: their seed, what the collector passes over, and a way to see the library's errors."""

import gc

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings
from tests import (
    machine,
    type_checks,  # noqa: F401 - before anything that it is to check
)
from tests.seed_shift import shift_seeds

from convattn.encodings import registry

gc.disable()  # until all tests are collected

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


def pytest_addoption(parser, pluginmanager):
    pluginmanager.register(machine)
    parser.addoption(
        "--seed-shift",
        type=int,
        default=0,
        help="add this to every seed of torch, numpy and hypothesis",
    )


def pytest_configure(config):
    if shift := config.getoption("--seed-shift"):
        shift_seeds(shift)


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Starts every test with the same random numbers, in whatever order the tests run."""
    torch.manual_seed(0)


def pytest_collection_finish():
    """Keeps the collector from going through everything that is loaded, again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    """Lets the collector free what is loaded, or triton's bindings print pages of leaks after the last lines."""
    gc.unfreeze()


@pytest.fixture
def without_type_checks():
    """Turns the test run's type check off: it would refuse an ill-typed argument before the library can."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def encodings_forgotten():
    """Forgets, after a test, the encodings that it has registered."""
    known = dict(registry._known)
    yield
    registry._known.clear()
    registry._known.update(known)
