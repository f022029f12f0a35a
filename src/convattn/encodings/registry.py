"""Encodings by name: those of the library, and those that a user has registered."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch.nn.utils import parametrize

from convattn.encodings.distance import AxialDistance, Distance
from convattn.encodings.encoding import Encoding
from convattn.encodings.fixed_shift import Shift
from convattn.encodings.generalized_quadratic import GeneralizedQuadratic
from convattn.encodings.learned_axial import LearnedAxial
from convattn.encodings.learned_table import LearnedTable
from convattn.encodings.linear_distance import LinearDistance
from convattn.encodings.quadratic import Quadratic
from convattn.encodings.score_function import ScoreFunction
from convattn.encodings.sinusoidal import Sinusoidal
from convattn.errors import ArgumentError, UnknownNameError, UnsupportedModelError, must_be, require
from convattn.record import is_json

_known: dict[str, type[Encoding]] = {
    "quadratic": Quadratic,
    "generalized_quadratic": GeneralizedQuadratic,
    "learned_axial": LearnedAxial,
    "learned_table": LearnedTable,
    "sinusoidal": Sinusoidal,
    "distance": Distance,
    "axial_distance": AxialDistance,
    "linear_distance": LinearDistance,
    "shift": Shift,
}
OWN_ENCODINGS = frozenset(_known)
_UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

ENCODINGS: Mapping[str, type[Encoding]] = MappingProxyType(_known)
"""Every encoding by its name, including registered ones."""


def register_encoding(name: str, kind: type[Encoding]) -> None:
    """Gives an encoding of your own a name, by which layers build it and saved layers and networks load it.

    Register it before saving, and again in each program that loads. The class is built as
    ``kind(num_heads, dims, **options())``.

    Args:
        name: A name that no other encoding has. The same class may be registered again, as when a notebook's cell runs
            twice.
        kind: A subclass of `Encoding`.

    Raises:
        ArgumentError: `kind` is not a subclass of `Encoding` that can be built, or `name` is no identifier or is taken.

    Example:
        >>> class Near(Encoding):
        ...     def score(self, displacement):
        ...         return -displacement.abs().sum(-1).expand(self.num_heads, *displacement.shape[:-1])
        >>> register_encoding("near", Near)
        >>> create_encoding("near", num_heads=3, dims=2)
        Near(num_heads=3, dims=2)
    """
    is_encoding = isinstance(kind, type) and issubclass(kind, Encoding)
    can_be_built = is_encoding and not inspect.isabstract(kind)
    require(can_be_built, "kind", "a subclass of Encoding that can be built", kind)
    is_name = isinstance(name, str) and name.isidentifier()
    require(is_name, "name", "a name of letters, digits and underscores", name)
    other = _known.get(name, kind)
    if not _is_same(other, kind):
        raise ArgumentError(
            f"name must be new, but {name!r} is already the name of {other.__qualname__}"
        )
    _known[name] = kind


def create_encoding(name: str, num_heads: int, dims: int, **options: Any) -> Encoding:
    """Builds an encoding by its name.

    Args:
        name: A key of `ENCODINGS`.
        num_heads: Number of heads, ≥ 1.
        dims: Number of axes of the grid, ≥ 1.
        **options: Further arguments of that encoding.

    Returns:
        The encoding, freshly initialised.

    Raises:
        UnknownNameError: There is no encoding of that name.
        ArgumentError: The encoding does not take one of the options.

    Example:
        >>> create_encoding("distance", num_heads=9, dims=2, hidden=32)
        Distance(num_heads=9, dims=2, hidden=32)
    """
    require_encoding(name)
    kind = ENCODINGS[name]
    known = _arguments(kind)
    for option in options:
        require(option in known, f"option of encoding {name!r}", f"one of {known}", option)
    return kind(num_heads, dims, **options)


def require_encoding(name: str) -> None:
    """Raises UnknownNameError unless there is an encoding of that name; it says how one is registered."""
    if name not in ENCODINGS:
        more = (
            ". One of your own: import the module that registers it first, by"
            f" convattn.register_encoding({name!r}, CLASS)"
        )
        raise UnknownNameError("encoding", name, ENCODINGS, more)


def import_modules(names: Sequence[str]) -> None:
    """Imports modules that register encodings; they are looked for in the current folder, too.

    Raises ArgumentError, with the reason, if one cannot be imported.
    """
    path = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        for name in names:
            try:
                import_module(name)
            except Exception as error:
                expected = "a module that can be imported, by its name as in Python"
                reason = f"{type(error).__name__}: {error}"
                raise ArgumentError(f"{must_be('import', expected, name)} ({reason})") from error
    finally:
        sys.path[:] = path


def describe_encoding(encoding: Encoding) -> dict[str, Any]:
    """Returns what rebuilds an encoding: its name and its options, not its parameters.

    Args:
        encoding: The encoding.

    Returns:
        Arguments of `create_encoding` besides the sizes, as JSON types: "name" and "options".

    Raises:
        UnsupportedModelError: Its name and options would not rebuild it.

    Example:
        >>> describe_encoding(Distance(9, 2))
        {'name': 'distance', 'options': {'hidden': 64}}
    """
    kind = parametrize.type_before_parametrizations(encoding)
    if isinstance(encoding, ScoreFunction):
        raise UnsupportedModelError(
            f"cannot save the encoding {encoding}: a file holds no functions. Write it as a subclass of"
            " convattn.Encoding, and register that by convattn.register_encoding"
        )
    name = next((name for name, known in _known.items() if _is_same(known, kind)), None)
    if name is None:
        raise UnsupportedModelError(
            f"cannot save the encoding {kind.__name__}: loading could not build it, because it has no name. Register it"
            f" first: convattn.register_encoding({kind.__name__.lower()!r}, {kind.__name__})"
        )
    options = encoding.options()
    if name not in OWN_ENCODINGS:
        _require_all(kind, options)
    return {"name": name, "options": options}


def _is_same(known: type[Encoding], kind: type[Encoding]) -> bool:
    """Tells whether two classes are one; one that a notebook's cell defines again is another object of the name."""
    return (known.__module__, known.__qualname__) == (kind.__module__, kind.__qualname__)


def _require_all(kind: type[Encoding], options: dict[str, Any]) -> None:
    """Refuses options that leave out an argument, which would return to its default, or that JSON changes."""
    refusal = f"cannot save the encoding {kind.__name__}: its options() must"
    for name in _arguments(kind):
        if name not in options:
            raise UnsupportedModelError(f"{refusal} return its argument {name!r}")
    if not is_json(options):
        raise UnsupportedModelError(f"{refusal} be JSON types, but are {options}")


def _arguments(kind: type[Encoding]) -> list[str]:
    """Lists the names of an encoding's arguments besides the sizes."""
    parameters = inspect.signature(kind).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind not in _UNNAMED}
    return sorted(names - {"num_heads", "dims"})
