import pytest
from tests.lab.resuming import RECIPE
from tests.lab.run_cases import make_all
from tests.lab.tiny import tiny_data

from convattn.lab import train


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    train(RECIPE, output=folder, data=tiny_data(), progress=False)
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with tiny runs of every recipe, not to be changed."""
    return make_all(tmp_path_factory.mktemp("runs"))
