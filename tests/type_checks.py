"""Makes the type checks of the test run cheap.

jaxtyping's hook decorates every function of the package with `jaxtyping.jaxtyped`, which binds and checks the arguments
of a call twice, and does so also where no annotation speaks of shapes: a third of the tests' time. `check_once` is put
in its place. Arguments, then what is returned, are checked in one call, and what an axis's name stands for is kept for
the functions that have such names.
"""

from functools import partial, wraps
from inspect import isasyncgenfunction, isclass, iscoroutinefunction, isgeneratorfunction
from types import FunctionType
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype.roar import BeartypeCallHintViolation

_jaxtyped = jaxtyping.jaxtyped


def check_once(function=None, *, typechecker):
    """Decorates as `jaxtyping.jaxtyped` does; what is no plain function or class is left to it."""
    if function is None:
        return partial(check_once, typechecker=typechecker)
    if isclass(function):  # of which a dataclass makes a function that no one has decorated
        if hasattr(function, "__dataclass_fields__") and not hasattr(
            function.__init__, "__wrapped__"
        ):
            function.__init__ = check_once(function.__init__, typechecker=typechecker)
        return function
    runs_later = (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)
    if not isinstance(function, FunctionType) or any(kind(function) for kind in runs_later):
        return _jaxtyped(function, typechecker=typechecker)
    if not function.__annotations__:
        return function
    return _wrap(function, typechecker)


jaxtyping.jaxtyped = check_once


def _wrap(function, typechecker):
    hints = {
        name: _resolve(hint, function.__globals__)
        for name, hint in function.__annotations__.items()
    }
    twin = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    twin.__kwdefaults__, twin.__qualname__, twin.__annotations__ = (
        function.__kwdefaults__,
        function.__qualname__,
        hints,
    )
    checked = typechecker(twin)

    @wraps(function)
    def plain(*args, **kwargs):
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        try:
            return checked(*args, **kwargs)
        except BeartypeCallHintViolation as error:
            raise jaxtyping.TypeCheckError(str(error)) from error

    @wraps(function)
    def shaped(*args, **kwargs):
        __tracebackhide__ = True
        with _jaxtyped("context"):
            return plain(*args, **kwargs)

    return shaped if any(map(_has_axes, hints.values())) else plain


def _resolve(hint, names):
    """Gives what an annotation stands for; one that names what only the type checker imports may be anything."""

    def holder(): ...

    holder.__annotations__ = {"hint": hint}
    try:
        return get_type_hints(holder, names, include_extras=True)["hint"]
    except NameError:
        return Any


def _has_axes(hint):
    return (isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)) or any(
        map(_has_axes, get_args(hint))
    )
