"""The public interface: the root's names, its imports for type checkers and docs/reference/api agree."""

import ast
import doctest
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import convattn

API = Path(__file__).parents[1] / "docs" / "reference" / "api"
MOST_NAMES = 40
OBJECTS = [name for name in convattn.__all__ if name != "__version__"]


def imports_for_type_checkers() -> dict[str, str]:
    """Reads the imports under `if TYPE_CHECKING` in the root: name → module."""
    modules = {}
    for node in ast.parse(Path(convattn.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                for alias in statement.names:
                    modules[alias.name] = statement.module
    return modules


def test_the_root_has_few_names_in_order():
    assert len(convattn.__all__) <= MOST_NAMES
    assert list(convattn.__all__) == sorted(set(convattn.__all__)) == dir(convattn)


def test_type_checkers_see_what_python_sees():
    modules = imports_for_type_checkers()
    assert sorted(modules) == sorted(OBJECTS)
    for name, module in modules.items():
        assert getattr(convattn, name) is getattr(importlib.import_module(module), name), name


def test_every_public_name_is_documented_once():
    listed = []
    for page in API.glob("*.md"):
        listed += re.findall(r"^- `(\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(convattn.__all__)


def test_every_name_of_a_public_module_has_its_docstring_in_the_reference():
    index = (API / "index.md").read_text(encoding="utf-8")
    modules = ["convattn", *re.findall(r"`(convattn\.[\w.]+)`", index)]
    documented = []
    for page in API.glob("*.md"):
        for name in re.findall(r"auto\w+:: ([\w.]+)", page.read_text(encoding="utf-8")):
            home, _, own = name.rpartition(".")
            documented.append(getattr(importlib.import_module(home), own))
    assert len(modules) == 9
    for module in map(importlib.import_module, modules):
        for name in set(module.__all__) - {"__version__"}:
            assert any(getattr(module, name) is one for one in documented), (
                f"{module.__name__}.{name}"
            )


def test_every_public_name_has_an_example_that_runs():
    parser = doctest.DocTestParser()
    for name in OBJECTS:
        docstring = getattr(convattn, name).__doc__
        assert re.search(r"^ *Example:$", docstring, re.MULTILINE), name
        examples = parser.get_examples(docstring)
        assert any(doctest.SKIP not in example.options for example in examples), name


def missing_sections(function) -> list[str]:
    """Returns the sections that the docstring of a function needs and lacks."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    needed = []
    if ast.unparse(definition.returns) != "None":
        needed.append("Returns:")
    if any(isinstance(node, ast.Raise) for node in ast.walk(definition)):
        needed.append("Raises:")
    return [section for section in needed if section not in function.__doc__]


def documented_arguments(function) -> list[str]:
    """Returns the arguments that the docstring of a function names, in its order."""
    _, _, arguments = inspect.cleandoc(function.__doc__).partition("\nArgs:\n")
    section, _, _ = arguments.partition("\n\n")
    names = ", ".join(re.findall(r"^ {4}(\S[\w*, ]*): ", section, re.MULTILINE))
    return re.findall(r"\w+", names)


def test_every_public_function_documents_arguments_results_and_errors():
    for name in OBJECTS:
        function = getattr(convattn, name)
        if inspect.isfunction(function):
            assert documented_arguments(function) == list(inspect.signature(function).parameters), (
                name
            )
            assert missing_sections(function) == [], name


def test_an_unknown_name_raises():
    with pytest.raises(
        AttributeError, match=r"^module 'convattn' has no attribute 'no_such_name'$"
    ):
        convattn.no_such_name  # noqa: B018
    with pytest.raises(ImportError, match="no_such_name"):
        from convattn import no_such_name  # noqa: F401
