"""Leaves the classes of attention that are known as they were, after every test of this folder."""

import pytest

from convattn.heads import catalogue as registered


@pytest.fixture(autouse=True)
def forgotten():
    """Forgets, after a test, the classes that it has registered."""
    known = [*registered._registered]
    yield
    registered._registered[:] = known
