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


def names_for_type_checkers() -> dict[str, str]:
    """Read the imports under `if TYPE_CHECKING` in the root: name → module."""
    tree = ast.parse(Path(convattn.__file__).read_text(encoding="utf-8"))
    blocks = [
        node
        for node in tree.body
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    ]
    assert len(blocks) == 1
    return {alias.name: node.module for node in blocks[0].body for alias in node.names}


def documented_names() -> list[str]:
    """Read the names that open a line of a list in docs/reference/api."""
    pages = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
    return [
        name
        for page in pages
        for name in re.findall(r"^- `(\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


@pytest.mark.parametrize("name", convattn.__all__)
def test_every_public_name_is_found(name):
    assert getattr(convattn, name) is not None


@pytest.mark.parametrize(("name", "home"), names_for_type_checkers().items())
def test_type_checkers_see_what_python_sees(name, home):
    assert getattr(convattn, name) is getattr(importlib.import_module(home), name)


def test_type_checkers_see_every_name():
    assert {*names_for_type_checkers(), "__version__"} == set(convattn.__all__)


def test_all_is_sorted_and_has_no_doubles():
    assert list(convattn.__all__) == sorted(set(convattn.__all__))


def test_dir_lists_the_public_names():
    assert dir(convattn) == sorted(convattn.__all__)


def test_every_public_name_is_documented_once():
    assert sorted(documented_names()) == sorted(convattn.__all__)


@pytest.mark.parametrize("name", convattn.__all__)
def test_every_public_name_has_a_docstring(name):
    if name != "__version__":
        assert getattr(convattn, name).__doc__


@pytest.mark.parametrize("name", [name for name in convattn.__all__ if name != "__version__"])
def test_every_public_name_has_an_example_that_runs(name):
    docstring = getattr(convattn, name).__doc__
    examples = doctest.DocTestParser().get_examples(docstring)
    assert re.search(r"^ *Example:$", docstring, re.MULTILINE)
    assert any(doctest.SKIP not in example.options for example in examples)


@pytest.mark.parametrize(
    "name", [name for name in convattn.__all__ if inspect.isfunction(getattr(convattn, name))]
)
def test_every_public_function_documents_arguments_results_and_errors(name):
    function = getattr(convattn, name)
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    returns = not (
        isinstance(definition.returns, ast.Constant) and definition.returns.value is None
    )
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(definition))
    needed = {
        "Args:": bool(inspect.signature(function).parameters),
        "Returns:": returns,
        "Raises:": raises,
    }
    assert [
        section for section, there in needed.items() if there and section not in function.__doc__
    ] == []


def test_an_unknown_name_raises():
    with pytest.raises(
        AttributeError, match=r"^module 'convattn' has no attribute 'no_such_name'$"
    ):
        convattn.no_such_name  # noqa: B018


def test_an_unknown_import_raises():
    with pytest.raises(ImportError, match="no_such_name"):
        from convattn import no_such_name  # noqa: F401
