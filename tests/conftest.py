"""What all tests share: how hypothesis draws, what the collector passes over, and a way to see the library's errors."""

import gc

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings
from tests import type_checks  # noqa: F401 - before anything that it is to check

from convattn.encodings import registry

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_collection_finish():
    """Keeps the collector from going through everything that is loaded, again and again."""
    gc.collect()
    gc.freeze()


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
