"""The public interface: what is exported, what `__all__` says and what docs/reference/api lists are the same."""

import ast
import doctest
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import convattn

ROOT = Path(__file__).parents[1]
PUBLIC = {name: getattr(convattn, name) for name in convattn.__all__}
DESCRIBED = {name: item for name, item in PUBLIC.items() if name != "__version__"}


def names_for_type_checkers() -> dict[str, str]:
    """Read the imports under `if TYPE_CHECKING` in the root: name → module."""
    tree = ast.parse(Path(convattn.__file__).read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {alias.name: node.module for node in block.body for alias in node.names}


def documented_names() -> list[str]:
    """Read the names that open a line of a list in docs/reference/api."""
    names = []
    for page in (ROOT / "docs" / "reference" / "api").glob("*.md"):
        names += re.findall(r"^- `(\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return names


def test_names_are_few_sorted_and_documented_once():
    assert len(PUBLIC) <= 40
    assert list(convattn.__all__) == sorted(set(convattn.__all__)) == dir(convattn)
    assert sorted(documented_names()) == list(convattn.__all__)


def test_type_checkers_see_what_python_sees():
    homes = names_for_type_checkers()
    assert {*homes, "__version__"} == {*PUBLIC}
    for name, home in homes.items():
        assert PUBLIC[name] is getattr(importlib.import_module(home), name), name


def test_every_name_has_an_example_that_runs():
    for name, item in DESCRIBED.items():
        examples = doctest.DocTestParser().get_examples(item.__doc__)
        assert re.search(r"^ *Example:$", item.__doc__, re.MULTILINE), name
        assert any(doctest.SKIP not in example.options for example in examples), name


def test_every_function_documents_arguments_results_and_errors():
    for name, function in DESCRIBED.items():
        if not inspect.isfunction(function):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        needed = {
            "Args:": bool(inspect.signature(function).parameters),
            "Returns:": ast.unparse(definition.returns) != "None",
            "Raises:": any(isinstance(node, ast.Raise) for node in ast.walk(definition)),
        }
        for section, there in needed.items():
            assert not there or section in function.__doc__, f"{name} has no {section}"


def test_an_unknown_name_raises():
    message = r"^module 'convattn' has no attribute 'no_such_name'$"
    with pytest.raises(AttributeError, match=message):
        convattn.no_such_name  # noqa: B018
    with pytest.raises(ImportError, match="no_such_name"):
        from convattn import no_such_name  # noqa: F401
