import pytest
from tests.lab.run_cases import make_all


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with tiny runs of every recipe, not to be changed."""
    return make_all(tmp_path_factory.mktemp("runs"))
