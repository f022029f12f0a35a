"""What commands share: options and printing."""

import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text as RichText

from convattn.errors import ArgumentError, must_be
from convattn.fields import Range, Text, read
from convattn.record import Record


def _read_as(hint: Any) -> Parameter:
    """Returns what reads an option as fields of records are read; cyclopts alone would round 1.5 and not say so.

    Items of a list are separated by commas.
    """

    def convert(_: Any, tokens: Sequence[Any]) -> Any:
        return read(hint, Text(tokens[0].value))

    return Parameter(converter=convert, n_tokens=1)


Output = Annotated[Path, Parameter(name=("--output", "-o"))]
OutputOrDefault = Annotated[Path | None, Parameter(name=("--output", "-o"))]
Settings = Annotated[tuple[str, ...], Parameter(name="--set")]
Imports = Annotated[tuple[str, ...], Parameter(name="--import")]
WholeNumber = Annotated[int, _read_as(int)]
Count = Annotated[int, _read_as(Annotated[int, Range(1)])]
Sizes = Annotated[tuple[int, ...], _read_as(tuple[Annotated[int, Range(1)], ...])]
Numbers = Annotated[tuple[float, ...], _read_as(tuple[float, ...])]


def first_free(path: Path, ending: str = "") -> Path:
    """Returns the path with an ending, or the first of PATH-2, PATH-3, … that does not exist or is an empty folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = (Path(place) / "demo.html").write_text("taken")
        ...     first_free(Path(place) / "demo", ".html").name
        'demo-2.html'
    """
    free, number = path.with_name(f"{path.name}{ending}"), 1
    while free.is_file() or any(free.glob("*")):
        number += 1
        free = path.with_name(f"{path.name}-{number}{ending}")
    return free


def key_values(texts: Iterable[str], option: str) -> dict[str, str]:
    """Reads the KEY=VALUE texts of an option; if a key comes twice, the later value counts.

    Example:
        >>> key_values(["seed=1", "seed=2"], "--set")
        {'seed': '2'}
    """
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ArgumentError(must_be(option, "of the form KEY=VALUE", text))
        pairs[key] = value
    return pairs


def require_absent(options: Mapping[str, object], reason: str) -> None:
    """Raises ArgumentError if an option was given that does not apply."""
    for name, value in options.items():
        absent = value is None or value is False or value == ()
        if not absent:
            raise ArgumentError(f"{name} {reason}")


def recipe_changes(
    overrides: Iterable[str], imports: Sequence[str], data: Path | None
) -> dict[str, str]:
    """Returns new values of a recipe from the options --set, --import and --data; the first go before the others."""
    changes = {}
    if imports:
        changes["imports"] = ",".join(imports)
    if data is not None:
        from convattn.lab.run_setup import data_changes

        changes |= data_changes(data)
    return changes | key_values(overrides, "--set")


def print_record(record: Record, summary: str, *, json: bool) -> None:
    """Prints a result as JSON, or its summary, whose lines fit the terminal if it goes to one."""
    if sys.stdout is not None and sys.stdout.isatty():
        summary = fit(summary, shutil.get_terminal_size().columns)
    text = record.to_json() if json else f"{summary}\n"
    print(text, end="", flush=True)


def fit(text: str, columns: int) -> str:
    r"""Breaks long lines at spaces; what follows stands below the second column, if there is one.

    Wide characters, as of Chinese, count as the two columns that they take; a word longer than a line is broken.
    Commands stay whole: they are copied.

    Example:
        >>> print(fit("  not covered     " + "word " * 9 + "\n  repeat with     convattn train sa-quadratic", 40))
          not covered     word word word word
                          word word word word
                          word
          repeat with     convattn train sa-quadratic
    """
    console = Console(width=columns)
    lines = []
    for line in text.split("\n"):
        column, rest = re.findall(r"^( *\S.*? {2,}| *)(.*)$", line)[0]
        if cell_len(line) <= columns or rest.startswith("convattn "):
            lines.append(line)
            continue
        indent = min(cell_len(column), columns // 2)
        if cell_len(column) > indent:
            lines.append(column.rstrip())
            column = " " * indent
        for part in RichText(rest).wrap(console, columns - indent):
            lines.append(f"{column}{part}".rstrip())
            column = " " * indent
    return "\n".join(lines)


def say(line: str) -> None:
    """Prints a line on standard error."""
    print(line, file=sys.stderr)
