"""Prints the lines and files of each room of the package against its budget: python scripts/rooms.py.

A room is a folder of the package, or the files at its root. Exit code 1 means that a room has more than 110 % of its
budget, or no budget, or that two files of the package have one name. Rooms in `ABOVE` may only shrink.
"""

import sys
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "convattn"

ROOT = "root files"
BUDGETS = {
    ROOT: 1_200,
    "encodings": 1_300,
    "functional": 3_200,
    "layers": 1_660,
    "convert": 3_100,
    "models": 750,
    "networks": 1_050,
    "heads": 4_700,
    "viewer": 1_500,
    "cli": 1_000,
    "testing": 300,
    "lab": 5_000,
}
"""Lines of Python that a room may have. A room that must grow is a decision: change its number here."""

TOTAL = 24_500
TOLERANCE = 1.1

ABOVE = {
    ROOT: 1_559,
    "convert": 4_719,
    "models": 1_049,
    "networks": 1_877,
    "heads": 5_503,
    "viewer": 1_734,
    "cli": 1_393,
    "lab": 5_697,
}
"""Rooms above their budget, and the lines that they may have meanwhile. Lower a number, never raise it."""


def python_files(package: Path) -> list[Path]:
    """Returns the Python files of a package, sorted."""
    return sorted(package.rglob("*.py"))


def count_rooms(package: Path, budgets: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Returns the number of lines and of files of each room, in the order of the budgets; rooms without one come last.

    Args:
        package: Folder of the package.
        budgets: Lines that a room may have, by its name.

    Returns:
        Lines and files by the name of the room.
    """
    rooms: dict[str, list[int]] = {room: [] for room in budgets}
    for file in python_files(package):
        room = ROOT if file.parent == package else file.relative_to(package).parts[0]
        rooms.setdefault(room, []).append(len(file.read_text(encoding="utf-8").splitlines()))
    return {room: (sum(lines), len(lines)) for room, lines in rooms.items()}


def shared_names(package: Path) -> dict[str, list[str]]:
    """Returns the names that several files have, each with their paths; `__init__.py` and its like are no names."""
    paths = defaultdict(list)
    for file in python_files(package):
        if not file.name.startswith("__"):
            paths[file.name].append(file.relative_to(package).as_posix())
    return {name: found for name, found in paths.items() if len(found) > 1}


def find_faults(
    rooms: dict[str, tuple[int, int]], budgets: dict[str, int], shared: dict[str, list[str]], above: dict[str, int]
) -> list[str]:
    """Describes each room above its budget or without one, and each name of several files.

    Args:
        rooms: Lines and files by room.
        budgets: Lines that a room may have.
        shared: Names of several files, with their paths.
        above: Lines that a room above its budget may have instead.
    """
    faults = []
    for room, (lines, _) in rooms.items():
        if room not in budgets:
            faults.append(f"{room} has no budget")
        elif lines > TOLERANCE * budgets[room] and room not in above:
            faults.append(f"{room} has {lines:,} lines, more than 110 % of its budget of {budgets[room]:,}")
        elif room in above and lines > above[room]:
            faults.append(f"{room} has {lines:,} lines and is above its budget: it may have {above[room]:,}")
    return faults + [f"{name} is the name of {' and '.join(paths)}" for name, paths in shared.items()]


def table(rooms: dict[str, tuple[int, int]], budgets: dict[str, int], total: int) -> str:
    """Returns the rooms as a Markdown table, and their sum in its last row."""
    rows = [(room, *counts, budgets.get(room, 0)) for room, counts in rooms.items()]
    rows.append(("together", sum(row[1] for row in rows), sum(row[2] for row in rows), total))
    lines = ["| room | files | lines | budget | used |", "|---|---|---|---|---|"]
    for room, used, files, budget in rows:
        share = f"{used / budget:.0%}" if budget else ""
        lines.append(f"| {room} | {files} | {used:,} | {budget:,} | {share} |")
    return "\n".join(lines)


def main() -> int:
    """Prints the table and the faults, and returns the exit code."""
    rooms = count_rooms(PACKAGE, BUDGETS)
    faults = find_faults(rooms, BUDGETS, shared_names(PACKAGE), ABOVE)
    print("\n".join([table(rooms, BUDGETS, TOTAL), "", *faults]).rstrip())  # noqa: T201
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
