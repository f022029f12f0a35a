import pytest
from tests.lab.resuming import RECIPE
from tests.lab.tiny import tiny_data

from convattn.lab import train


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    train(RECIPE, output=folder, data=tiny_data(), progress=False)
    return folder
