"""scripts/rooms.py counts the package's lines against their budgets."""

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "rooms.py"))
ROOT = SCRIPT["ROOT"]
BUDGETS = {ROOT: 10, "layers": 10}


@pytest.fixture
def package(tmp_path):
    """A package of 3 lines at its root, and of 5 + 2 lines in a room and a folder of it."""
    for name, lines in {"__init__.py": 1, "grid.py": 2, "layers/relative.py": 5, "layers/deep/__init__.py": 2}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n" * lines)
    (tmp_path / "layers" / "page.js").write_text("not Python\n")
    return tmp_path


def faults(package, budgets=BUDGETS, above=None):
    rooms, shared = SCRIPT["count_rooms"](package, budgets), SCRIPT["shared_names"](package)
    return SCRIPT["find_faults"](rooms, budgets, shared, above or {})


def test_lines_and_files_are_counted_by_room(package):
    assert SCRIPT["count_rooms"](package, BUDGETS) == {ROOT: (3, 2), "layers": (7, 2)}


def test_the_table_has_a_row_for_each_room_and_the_sum(package):
    rows = SCRIPT["table"](SCRIPT["count_rooms"](package, BUDGETS), BUDGETS, 20).splitlines()[2:]
    assert rows == [
        f"| {ROOT} | 2 | 3 | 10 | 30% |",
        "| layers | 2 | 7 | 10 | 70% |",
        "| together | 4 | 10 | 20 | 50% |",
    ]


def test_a_package_within_its_budgets_has_no_faults(package):
    assert faults(package) == []


@pytest.mark.parametrize(("lines", "refused"), [(11, False), (12, True)])
def test_a_room_above_110_percent_is_a_fault(package, lines, refused):
    (package / "layers" / "relative.py").write_text("x = 1\n" * (lines - 2))
    expected = [f"layers has {lines} lines, more than 110 % of its budget of 10"]
    assert faults(package) == (expected if refused else [])


@pytest.mark.parametrize(("lines", "refused"), [(20, False), (21, True)])
def test_a_room_that_is_above_its_budget_may_only_shrink(package, lines, refused):
    (package / "layers" / "relative.py").write_text("x = 1\n" * (lines - 2))
    expected = [f"layers has {lines} lines and is above its budget: it may have 20"]
    assert faults(package, above={"layers": 20}) == (expected if refused else [])


def test_a_room_without_a_budget_is_a_fault(package):
    assert faults(package, {ROOT: 10}) == ["layers has no budget"]


def test_two_files_of_one_name_are_a_fault(package):
    (package / "layers" / "grid.py").touch()
    assert faults(package) == ["grid.py is the name of grid.py and layers/grid.py"]


def test_the_budgets_name_the_rooms_of_the_package():
    assert SCRIPT["count_rooms"](SCRIPT["PACKAGE"], SCRIPT["BUDGETS"]).keys() == SCRIPT["BUDGETS"].keys()
