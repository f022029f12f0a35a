import copy
import inspect
import pickle
import re
import sys

import numpy as np
import pytest

from convattn import errors
from convattn.errors import (
    ConvAttnError,
    MissingDependencyError,
    UnknownNameError,
    must_be,
    must_be_a,
    must_fit,
    optional_module,
)


def test_a_package_that_is_there_and_broken_is_not_called_absent(tmp_path, monkeypatch):
    (tmp_path / "broken_one.py").write_text("raise ImportError('no libx.so')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConvAttnError, match=r"broken_one is installed.*no libx\.so") as caught:
        optional_module("broken_one", "none")
    assert not isinstance(caught.value, MissingDependencyError)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingDependencyError, match="scikit-learn"):
        optional_module("sklearn.datasets", "train")


CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)
]
KINDS = [kind for kind in CLASSES if not issubclass(kind, Warning)]
BUILTIN_BASES = {
    "ArgumentError": ValueError,
    "EncodingRangeError": ValueError,
    "MissingDependencyError": ImportError,
    "RecipeError": ValueError,
    "ShapeError": ValueError,
    "UnknownNameError": ValueError,
}


def tree_in_the_docstring():
    """Reads the tree that the module draws: error → the one above it."""
    above, found = [], {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"^( {4}[│├└─ ]*)(\w+Error)\b", line)
        if match:
            depth = (len(match[1]) - 4) // 4
            del above[depth:]
            found[match[2]] = above[-1] if above else None
            above.append(match[2])
    return found


def test_the_tree_that_is_drawn_is_the_tree_that_is():
    drawn = tree_in_the_docstring()
    assert drawn.pop("ConvAttnError") is None
    assert drawn == {
        kind.__name__: kind.__bases__[0].__name__ for kind in KINDS if kind is not ConvAttnError
    }


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_caught_as_the_root_and_as_what_python_code_expects(kind):
    assert issubclass(kind, ConvAttnError)
    expected = BUILTIN_BASES.get(kind.__name__)
    for builtin in (ValueError, ImportError):
        assert issubclass(kind, builtin) == (builtin is expected)


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        (
            "quadratik",
            {"quadratic", "distance"},
            "unknown encoding 'quadratik': did you mean 'quadratic'? Known: ",
        ),
        ("mine", ("quadratic", "distance"), "unknown encoding 'mine'. Known: distance, quadratic"),
        (3, ["quadratic"], "unknown encoding 3. Known: quadratic"),
        ("", [], "unknown encoding ''. Known: "),
    ],
)
def test_unknown_names_come_with_the_nearest_and_all_the_known(name, known, message):
    error = UnknownNameError("encoding", name, known)
    assert str(error).startswith(message)
    assert error.args == ("encoding", name, sorted(known), "")


def test_missing_packages_come_with_the_line_that_installs_them():
    error = MissingDependencyError("matplotlib", "figures")
    assert str(error).endswith(
        'matplotlib, which is not installed; run: pip install "convattn[figures]"'
    )
    assert error.args == ("matplotlib", "figures")


@pytest.mark.parametrize(
    "error",
    [
        UnknownNameError("encoding", "quadratik", ["quadratic"]),
        MissingDependencyError("matplotlib", "figures"),
        *(
            kind("what was wrong")
            for kind in KINDS
            if kind not in {UnknownNameError, MissingDependencyError}
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_between_processes(error):
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_messages_about_arguments_have_one_form():
    assert (
        must_be("padding", '"same" or "valid"', "sam")
        == 'padding must be "same" or "valid", but is \'sam\''
    )
    assert (
        must_be_a("model", "an nn.Module", [1]) == "model must be an nn.Module, but is of type list"
    )


def test_a_long_value_is_cut_and_its_type_named():
    message = must_be("shape", "4 whole numbers", list(range(1000)))
    assert message.startswith("shape must be 4 whole numbers, but is [0, 1, 2, 3,")
    assert message.endswith("… (of type list)")
    assert len(message) < 300
    assert must_be("shape", "one number", "a" * 298).endswith("a'")


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")]
)
def test_a_lack_of_memory_is_said(error):
    message = "images must fit into memory with the network, but there is not enough of it to run on 4 images"
    assert must_fit("4 images", error) == message


def test_an_array_in_place_of_a_tensor_is_answered_with_the_remedy():
    message = must_be_a("images", "a tensor", np.zeros(3))
    assert message.endswith("ndarray: torch.as_tensor(numpy.asarray(it)) makes a tensor of it")
