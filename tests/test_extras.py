"""Extras: each package is used by code, and is pinned at a version that the extra takes."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "convattn"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {
    extra: [Requirement(line) for line in lines]
    for extra, lines in PROJECT["optional-dependencies"].items()
}
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


def packages(*bundles: str) -> list[tuple[str, Requirement]]:
    """Lists what extras, and bundles of them, ask for: each itself and not through other extras."""
    pairs = []
    for extra in [*(EXTRAS.keys() - BUNDLES), *bundles]:
        pairs += [(extra, needed) for needed in EXTRAS[extra] if needed.name != "convattn"]
    return pairs


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


BY_NAME = ("import_module", "optional_module")
"""Functions that import a package by its name."""


def source_files(*folders: Path) -> dict[Path, str]:
    """Reads Python files: path → text."""
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return {path: path.read_text(encoding="utf-8") for path in paths}


def imported_modules(nodes) -> set[str]:
    """Lists the packages that pieces of code import, by a statement or by `optional_module`."""
    modules = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
            name = node.args[0]
            modules.add(name.value if isinstance(name, ast.Constant) else "")
    return {module.partition(".")[0] for module in modules}


def imports_when_imported(text: str) -> set[str]:
    """Lists the packages that importing a file imports, without what functions and TYPE_CHECKING hold."""
    return imported_modules(ast.parse(text).body)


def test_code_uses_what_an_extra_brings():
    site = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    export = (ROOT / "tests/models/test_export.py").read_text(encoding="utf-8")
    used = {
        "tensorboard",
        "wandb",
        "trackio",
        *BY_TORCH,
        *imported_modules(ast.walk(ast.parse(site))),
    }
    used.update(re.findall(r'^(?:    |html_theme = )"(\w+)",?$', site, flags=re.MULTILINE))
    used.update(re.findall(r"^import (\w+)", export, flags=re.MULTILINE))
    for text in source_files(PACKAGE, ROOT / "benchmarks", ROOT / "evidence").values():
        used |= imported_modules(ast.walk(ast.parse(text)))
    for file in (ROOT / "evidence" / "sweep").glob("*.json"):  # lists of networks
        used.update(re.findall(r'"network": "(\w+)', file.read_text(encoding="utf-8")))
    for extra, needed in packages():
        assert MODULES.get(needed.name, needed.name) in used, f"{needed.name} of {extra}"


def test_the_core_imports_what_is_always_installed_and_no_more():
    installed = {Requirement(line).name for line in PROJECT["dependencies"]}
    installed |= sys.stdlib_module_names | {"convattn"}
    for path, text in source_files(PACKAGE).items():
        if room_of(path) not in OUTSIDE_THE_CORE:
            surplus = imports_when_imported(text) - installed
            assert not surplus, f"{path} needs {surplus}: use optional_module in a function"


def test_what_a_file_imports_is_seen():
    text = "import PIL.Image\nfrom pyarrow import parquet\ndef later():\n    import scipy"
    assert imports_when_imported(text) == {"PIL", "pyarrow"}


BARE = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({optional}))
import convattn
from convattn import *
for module in pkgutil.walk_packages(convattn.__path__, "convattn."):
    if module.name != "convattn.__main__":
        importlib.import_module(module.name)
"""


def test_every_module_is_imported_without_extras():
    optional = sorted({MODULES.get(needed.name, needed.name) for _, needed in packages()})
    assert len(optional) > 20
    command = [sys.executable, "-c", BARE.format(optional=optional)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


HINT = re.compile(r'(?:MissingDependencyError|optional_module)\("([\w.-]+)", "(\w+)"\)')
"""Where code names a package or a module, and the extra that brings it; the lab may name its own, with all it needs."""


def brought(extra: str) -> set[str]:
    """Names the packages of an extra and of those that it holds."""
    names = set()
    for needed in EXTRAS[extra]:
        names.add(needed.name)
        for inner in needed.extras if needed.name == "convattn" else ():
            names |= brought(inner)
    return names


def test_every_hint_names_an_extra_that_brings_the_package():
    hints = set()
    for path, text in source_files(PACKAGE).items():
        if room_of(path) != "errors.py":  # whose hints are examples
            hints |= set(HINT.findall(text))
    assert len(hints) > 8
    names = {module: package for package, module in MODULES.items()}
    for module, extra in hints:
        outermost = module.partition(".")[0]
        package = names.get(outermost, outermost)
        assert package in brought(extra), f"{package} of {extra}"


def test_pins_are_within_what_extras_ask():
    pins: dict[str, list[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]:
        pin = Requirement(line)
        pins.setdefault(pin.name, []).append(str(pin.specifier).removeprefix("=="))
    for extra, needed in packages(*BUNDLES):
        assert needed.name in pins, f"{needed.name} of {extra} has no pin: run make constraints"
        for version in pins[needed.name]:
            assert version in needed.specifier, f"{needed} of {extra} and {version}"


def test_all_is_everything_but_the_tools_of_development():
    (requirement,) = EXTRAS["all"]
    assert requirement.extras == set(EXTRAS) - BUNDLES - TOOLS


def test_the_readme_lists_every_extra():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) == set(EXTRAS)
