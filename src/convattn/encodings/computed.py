"""Properties computed from a parameter: they can be assigned, but not changed in place."""

from collections.abc import Callable, Sequence
from types import NotImplementedType
from typing import Any

import torch
from torch import Tensor, nn

from convattn.errors import ArgumentError, ShapeError, must_be


class ComputedTensor(Tensor):
    """A tensor computed from a parameter; writing into it, or into a view of it, raises an error.

    Other results computed from it are plain tensors.
    """

    _hint: str

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a function of torch on plain tensors; refuses to write into a computed one."""
        kwargs, name = kwargs or {}, func.__name__
        written = kwargs.get("out", next(iter([*args, *kwargs.values()]), None))
        writes = "out" in kwargs or name in ("__set__", "__setitem__") or (name[-1] == "_" and name[-2:] != "__")
        if writes and isinstance(written, ComputedTensor):
            raise ArgumentError(written._hint)
        sources = [one for one in args if isinstance(one, ComputedTensor)]
        with torch._C.DisableTorchFunctionSubclass():
            plain = (one.as_subclass(Tensor) if isinstance(one, ComputedTensor) else one for one in args)
            return _guard_views(func(*plain, **kwargs), sources)

    def _cannot(self, _: object) -> NotImplementedType:
        return NotImplemented

    # x *= 2 is x = x * 2, which assigns where x is a property
    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = _cannot  # type: ignore[assignment]


def computed(values: Tensor, name: str, parameter: str) -> Tensor:
    """Guards a property that is computed from a parameter: writing into it, which has no effect, raises an error."""
    if torch.compiler.is_compiling():
        return values
    nothing = f"{name} is computed from {parameter}, so writing into it would change nothing"
    return _guard(values, f"{nothing}: assign it, as in encoding.{name} = value")


def given_numbers(name: str, value: Any, shape: tuple[int, ...]) -> Tensor:
    """Reads the finite numbers that a user assigned, of a shape or of one head for all; float64 on the CPU."""
    expected = f"finite numbers of shape {shape}, or {shape[1:]} for all heads"
    try:
        numbers = torch.as_tensor(value).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(must_be(name, expected, value)) from None
    if numbers.shape not in (shape[1:], shape):
        raise ShapeError(must_be(name, expected, tuple(numbers.shape)))
    if not torch.isfinite(numbers).all():
        raise ArgumentError(must_be(name, expected, numbers.tolist()))
    return numbers.expand(shape)


def write_parameter(module: nn.Module, name: str, values: Tensor) -> None:
    """Writes numbers into a parameter in place; raises ArgumentError if it is computed from others, as in pruning."""
    parameter = module._parameters.get(name)
    if parameter is None:
        raise ArgumentError(must_be(name, "a parameter that can be written, not one computed from others", name))
    with torch.no_grad():
        parameter.copy_(values)


def _guard(values: Tensor, hint: str) -> Tensor:
    guarded = values.as_subclass(ComputedTensor)
    guarded._hint = hint
    return guarded


def _guard_views(result: Any, sources: Sequence[ComputedTensor]) -> Any:
    """Guards whatever shares memory with a guarded tensor."""
    if type(result) in (tuple, list):
        return type(result)(_guard_views(one, sources) for one in result)
    if type(result) is Tensor:
        for source in sources:
            if torch._C._is_alias_of(result, source):  # type: ignore[attr-defined]
                return _guard(result, source._hint)
    return result
