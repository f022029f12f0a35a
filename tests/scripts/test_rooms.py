"""scripts/rooms.py counts tokens of code against their budgets."""

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "rooms.py"))
ROOT = SCRIPT["ROOT"]
BUDGETS = {ROOT: 10, "layers": 20}


@pytest.fixture
def package(tmp_path):
    """A package of 9 tokens at its root, and of 15 + 6 in a room and a folder of it."""
    for name, lines in {
        "__init__.py": 1,
        "grid.py": 2,
        "layers/relative.py": 5,
        "layers/deep/__init__.py": 2,
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n" * lines)
    (tmp_path / "layers" / "page.js").write_text("not Python\n")
    return tmp_path


def faults(package, budgets=BUDGETS):
    sizes = {room: size for room, size in SCRIPT["room_sizes"](package).items() if size.files}
    return SCRIPT["find_faults"](sizes, budgets, SCRIPT["shared_names"](package))


def test_tokens_are_counted_without_comments_and_docstrings():
    source = '''"""Two
lines."""

def f(x):  # a comment
    "Documented."
    return (
        x
    )
'''
    assert SCRIPT["tokens_by_line"](source) == [6, 2, 1, 1]


def test_tokens_and_files_are_counted_by_room(package):
    sizes = SCRIPT["room_sizes"](package)
    assert (sizes[ROOT].files, sizes[ROOT].tokens) == (2, 9)
    assert (sizes["layers"].files, sizes["layers"].tokens) == (2, 21)


def test_the_table_has_a_row_for_each_room(package):
    sizes = {"layers": SCRIPT["room_sizes"](package)["layers"]}
    rows = SCRIPT["table"](sizes, BUDGETS).splitlines()[2:]
    assert rows == ["| layers | 2 | 21 | 20 | 7 | 3.0 | 3 |"]


def test_a_package_within_its_budgets_has_no_faults(package):
    assert faults(package) == []


def test_a_room_above_105_percent_is_a_fault(package):
    (package / "layers" / "relative.py").write_text("x = 1\n" * 6)
    assert faults(package) == ["layers has 24 tokens; its budget is 20"]


def test_a_room_without_a_budget_is_a_fault(package):
    assert faults(package, {ROOT: 10}) == ["layers has no budget"]


def test_two_files_of_one_name_are_a_fault(package):
    (package / "layers" / "grid.py").touch()
    assert faults(package) == ["grid.py is the name of grid.py and layers/grid.py"]


def test_the_budgets_name_the_rooms_of_the_package():
    sizes = SCRIPT["room_sizes"](SCRIPT["PACKAGE"])
    assert sizes.keys() == SCRIPT["BUDGETS"].keys()
