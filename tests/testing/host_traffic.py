"""What a computation asks of the host, which on a GPU waits for the device: numbers read, and tensors sent."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_OPERATIONS = {
    "aten::_local_scalar_dense": "a number is read",
    "aten::nonzero": "places are counted",
    "aten::lift_fresh": "a tensor is made of numbers of Python",
}
_METHODS = {"cpu", "tolist", "numpy"}  # On the CPU these are no operations of torch


@contextmanager
def host_traffic() -> Iterator[list[str]]:
    """Gives a list to which everything that is asked of the host inside is added, in words."""
    seen: list[str] = []
    with _Methods(seen), _Operations(seen):
        yield seen


class _Operations(TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, _, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.name().split(".")[0]
        parts = tree_leaves((args, kwargs, result))
        devices = {part.device.type for part in parts if isinstance(part, Tensor)}
        if name in _OPERATIONS:
            self.seen.append(f"{name}: {_OPERATIONS[name]}")
        elif len(devices) > 1:
            self.seen.append(f"{name}: from one to the other of {', '.join(sorted(devices))}")
        return result


class _Methods(TorchFunctionMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, _, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in _METHODS:
            self.seen.append(f"Tensor.{name}: a tensor is read")
        return func(*args, **(kwargs or {}))
