"""Prints the size of each room of the package in tokens of code, and of tests and tools: python scripts/rooms.py.

A room is a folder of the package, or the files at its root. Tokens are those of Python's own tokenizer, without
comments, docstrings, line ends and indentation; a code line holds at least one. Lines are free: a step a line. Exit
code 1 means that a room has more than 105 % of its budget of tokens, or no budget, that the package has more than
`DENSEST` tokens a line, or that two files of the package have one name.
"""

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "convattn"

ROOT = "root files"
BUDGETS = {
    ROOT: 12_300,
    "encodings": 8_100,
    "functional": 29_500,
    "layers": 7_000,
    "convert": 33_000,
    "models": 2_900,
    "networks": 11_450,
    "heads": 38_800,
    "viewer": 10_100,
    "cli": 7_000,
    "testing": 1_900,
    "lab": 30_300,
}
"""Tokens that a room may have. A room that must grow is a decision: change its number here."""

OUTSIDE = {("tests",): 357_000, ("benchmarks", "evidence", "scripts"): 86_500}
"""Tokens that folders beside the package may have together."""

TOTAL = 192_000
TOLERANCE = 1.05
DENSEST = 9.0
"""Tokens a code line that the package may have on average."""

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


class Size(NamedTuple):
    """Size of some files: how many there are, and the tokens of each of their code lines."""

    files: int
    lines: list[int]

    @property
    def tokens(self) -> int:
        """Tokens of code."""
        return sum(self.lines)

    @property
    def density(self) -> float:
        """Tokens a code line."""
        return self.tokens / max(len(self.lines), 1)

    @property
    def densest(self) -> int:
        """Tokens of a line that 95 % of the lines do not exceed."""
        return sorted(self.lines)[int(0.95 * len(self.lines))] if self.lines else 0


def tokens_by_line(source: str) -> list[int]:
    """Returns the tokens of each code line of a file.

    Examples:
        >>> tokens_by_line('"docstring"' + chr(10) + "x = f(1)  # comment")
        [6]
    """
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            documented.update(range(node.lineno, node.lineno + source_lines(node)))
    lines = Counter[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row = token.start[0]
        if token.type not in _NO_CODE and row not in documented:
            lines[row] += 1
    return list(lines.values())


def source_lines(node: ast.Expr) -> int:
    """Returns how many lines an expression takes."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def size_of(files: list[Path]) -> Size:
    """Returns the size of some files."""
    lines: list[int] = []
    for file in files:
        lines += tokens_by_line(file.read_text(encoding="utf-8"))
    return Size(len(files), lines)


def python_files(*folders: Path) -> list[Path]:
    """Returns the Python files in some folders, sorted."""
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def room_sizes(package: Path) -> dict[str, Size]:
    """Returns the size of each room: those with a budget in its order, then those without."""
    rooms: dict[str, list[Path]] = {room: [] for room in BUDGETS}
    for file in python_files(package):
        room = ROOT if file.parent == package else file.relative_to(package).parts[0]
        rooms.setdefault(room, []).append(file)
    return {room: size_of(files) for room, files in rooms.items()}


def shared_names(package: Path) -> dict[str, list[str]]:
    """Returns the names that several files have, each with their paths; `__init__.py` and its like are no names."""
    paths = defaultdict(list)
    for file in python_files(package):
        if not file.name.startswith("__"):
            paths[file.name].append(file.relative_to(package).as_posix())
    return {name: places for name, places in paths.items() if len(places) > 1}


def find_faults(
    sizes: dict[str, Size], budgets: dict[str, int], shared: dict[str, list[str]]
) -> list[str]:
    """Describes each room above its budget or without one, code that is too dense, and each name of several files."""
    faults = []
    for room, size in sizes.items():
        if room not in budgets:
            faults.append(f"{room} has no budget")
        elif size.tokens > TOLERANCE * budgets[room]:
            faults.append(f"{room} has {size.tokens:,} tokens; its budget is {budgets[room]:,}")
    for name, paths in shared.items():
        faults.append(f"{name} is the name of {' and '.join(paths)}")
    return faults


def table(sizes: dict[str, Size], budgets: dict[str, int]) -> str:
    """Returns sizes beside their budgets as a Markdown table."""
    lines = [
        "| room | files | tokens | budget | code lines | tokens a line | of 95 % of lines, at most |",
        "|---|---|---|---|---|---|---|",
    ]
    for room, size in sizes.items():
        counts = f"{size.files} | {size.tokens:,} | {budgets.get(room, 0):,} | {len(size.lines):,}"
        lines.append(f"| {room} | {counts} | {size.density:.1f} | {size.densest} |")
    return "\n".join(lines)


def main() -> int:
    """Prints the table and the faults, and returns the exit code."""
    sizes = room_sizes(PACKAGE)
    package = size_of(python_files(PACKAGE))
    budgets = BUDGETS | {"package": TOTAL}
    sizes["package"] = package
    for folders, budget in OUTSIDE.items():
        name = ", ".join(folders)
        sizes[name] = size_of(python_files(*(REPOSITORY / folder for folder in folders)))
        budgets[name] = budget
    faults = find_faults(sizes, budgets, shared_names(PACKAGE))
    if package.density > DENSEST:
        faults.append(
            f"the package has {package.density:.1f} tokens a code line; at most {DENSEST}"
        )
    print("\n".join([table(sizes, budgets), "", *faults]).rstrip())  # noqa: T201
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
