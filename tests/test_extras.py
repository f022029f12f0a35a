"""Extras: each package is used by code, and is pinned at a version that the extra takes."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from convattn.cli.info import _optional_packages
from convattn.lab.loop import TRACKERS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
BUNDLES = {"all", "dev"}
TOOLS = {"docs"}
"""Extras for who develops the library, which `all` leaves out."""

OUTSIDE_THE_CORE = {"lab", "testing"}
"""Rooms that need an extra, or the tools of tests."""

MODULES = {
    "huggingface-hub": "huggingface_hub",
    "myst-nb": "myst_nb",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "sphinx-copybutton": "sphinx_copybutton",
    "sphinx-design": "sphinx_design",
    "tomli-w": "tomli_w",
}
"""Packages whose module has another name."""

BY_TORCH = {"onnx", "onnxscript"}
"""What `torch.onnx` imports on its own, for networks that are exported as docs/how-to/convert.md says."""


def requirements(extra: str) -> list[Requirement]:
    """Read what an extra asks for, itself and not through other extras."""
    found = [Requirement(line) for line in EXTRAS[extra]]
    return [one for one in found if one.name != "convattn"]


PAIRS = [(extra, one) for extra in EXTRAS if extra not in BUNDLES for one in requirements(extra)]


def imported_modules(text: str) -> set[str]:
    """List the packages that a file's code imports, by a statement or by `optional_module`."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "optional_module"
        ):
            found.add(ast.literal_eval(node.args[0]).partition(".")[0])
    return found


@pytest.fixture(scope="module")
def used() -> set[str]:
    """Whatever the library, its benchmarks, its evidence and the program of the export's test import, and trackers by name."""
    files = [
        path
        for folder in ("src", "benchmarks", "evidence")
        for path in (ROOT / folder).rglob("*.py")
    ]
    modules = set().union(*(imported_modules(path.read_text(encoding="utf-8")) for path in files))
    site = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    built = re.findall(r'^(?:    |html_theme = )"(\w+)",?$', site, flags=re.MULTILINE)
    exported = re.findall(
        r"^import (\w+)", (ROOT / "tests/models/test_export.py").read_text(), flags=re.MULTILINE
    )
    return {*modules, *exported, *built, *imported_modules(site), *TRACKERS, *BY_TORCH}


@pytest.mark.parametrize(("extra", "requirement"), PAIRS, ids=lambda one: getattr(one, "name", one))
def test_code_uses_what_an_extra_brings(extra, requirement, used):
    assert MODULES.get(requirement.name, requirement.name) in used


def module_level_imports(text: str) -> set[str]:
    """List the packages that importing a file imports, whatever stands in functions and under TYPE_CHECKING."""
    plain = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return imported_modules("\n".join(map(ast.unparse, plain)))


def test_the_core_imports_what_is_always_installed_and_no_more():
    always = (
        {Requirement(line).name for line in PROJECT["dependencies"]}
        | sys.stdlib_module_names
        | {"convattn"}
    )
    for path in sorted((ROOT / "src" / "convattn").rglob("*.py")):
        room = path.relative_to(ROOT / "src" / "convattn").parts[0]
        if room not in OUTSIDE_THE_CORE:
            surplus = module_level_imports(path.read_text(encoding="utf-8")) - always
            assert not surplus, f"{path} needs {surplus}: use optional_module in a function"


BARE = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({optional}))
import convattn
from convattn import *
for found in pkgutil.walk_packages(convattn.__path__, "convattn."):
    if found.name != "convattn.__main__":
        importlib.import_module(found.name)
"""


def test_every_module_is_imported_without_extras():
    optional = sorted({MODULES.get(one.name, one.name) for _, one in PAIRS})
    assert len(optional) > 20
    program = BARE.format(optional=optional)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


HINT = re.compile(r'(?:MissingDependencyError\(|optional_module\("[\w.]+", )"([\w-]+)", "(\w+)"\)')
"""Where code names a package and the extra that brings it; the lab may name its own, which brings all it needs."""


def test_every_hint_names_the_extra_that_info_names(monkeypatch):
    lines = [f"{one}; extra == '{extra}'" for extra, one in PAIRS]
    monkeypatch.setattr(metadata, "requires", lambda _: lines)
    known = _optional_packages()
    assert known["timm"] == "timm"
    named = [
        (room, *found)
        for path in (ROOT / "src" / "convattn").rglob("*.py")
        for room in [path.relative_to(ROOT / "src" / "convattn").parts[0]]
        for found in HINT.findall(path.read_text(encoding="utf-8"))
        if room != "errors.py"  # examples
    ]
    assert len(named) > 15
    assert not [
        one for one in named if one[2] != known[one[1]] and (one[0], one[2]) != ("lab", "train")
    ]


def test_what_a_file_imports_is_seen():
    text = "import PIL.Image\nfrom pyarrow import parquet\ndef later():\n    import scipy"
    assert module_level_imports(text) == {"PIL", "pyarrow"}


def test_pins_are_within_what_extras_ask():
    pins: dict[str, list[Version]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            pin = Requirement(line)
            pins.setdefault(pin.name, []).append(Version(next(iter(pin.specifier)).version))
    for extra in EXTRAS:
        for one in requirements(extra):
            assert one.name in pins, (
                f"{one.name} of the extra {extra} is not in constraints.txt: run make constraints"
            )
            assert all(version in one.specifier for version in pins[one.name]), (
                f"{one} against {pins[one.name]}"
            )


def test_all_is_everything_but_the_tools_of_development():
    (line,) = EXTRAS["all"]
    assert Requirement(line).extras == set(EXTRAS) - BUNDLES - TOOLS


def test_the_readme_lists_every_extra():
    table = re.findall(
        r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert set(table) == set(EXTRAS)
