"""Watches a run of a converted network: the path of each layer, and the convolutions that remain."""

import copy
import re
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from convattn.layers import RelativeAttention
from convattn.records import LeftAlone

_CONVOLUTION = re.compile(r"::_?(\w+_)?(deform_)?conv(olution|_transpose|_tbc|[123]d|_depthwise)")


class Watch:
    """Sees each operation of a running network, and the module that calls it.

    Hooks are set on entering and removed on leaving.

    Attributes:
        paths: The path of each layer on the first images that reached it.
        content_bytes: What the content scores of a layer take per image with an open gate.
        calls: Modules that called a convolution as a function, by name, and why it was not converted.
    """

    def __init__(self, network: nn.Module, left: Sequence[str]) -> None:
        """Prepares to watch; convolutions `left` alone, given by name, are not reported again."""
        self._network, self._left = network, set(left)
        self._stack: list[tuple[str, nn.Module]] = []
        self.paths: dict[RelativeAttention, str] = {}
        self.content_bytes: dict[RelativeAttention, int] = {}
        self.calls: dict[str, LeftAlone] = {}
        self._handles: list[RemovableHandle] = []
        self._operations = _Operations(self._seen)

    def __enter__(self) -> "Watch":
        layers = [module for module in self._network.modules() if isinstance(module, RelativeAttention)]
        parts = {part for layer in layers for part in layer.modules() if part is not layer}  # read, and not called
        for name, module in self._network.named_modules():
            if module in parts:
                continue
            self._handles.append(module.register_forward_pre_hook(self._enter(name), prepend=True, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        self._operations.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._operations.__exit__(kind, error, trace)
        for handle in self._handles:
            handle.remove()

    def _enter(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        """Makes the hook that notes the running module, and the path of a layer."""

        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._stack.append((name, module))
            if not isinstance(module, RelativeAttention) or module in self.paths:
                return
            x = module.batch_of(*given, **named)
            if isinstance(x, Tensor) and x.ndim == len(module.geometry.stride) + 2:  # others the layer itself refuses
                self.paths[module] = module.plan(x.shape, x.dtype).path
                if module.gate is not None:
                    opened = copy.copy(module)
                    opened.impl = "content"  # also while its gate is closed
                    self.content_bytes[module] = opened.plan((1, *x.shape[1:]), x.dtype).bytes

        return hook

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if self._stack and self._stack[-1][1] is module:
            self._stack.pop()

    def _seen(self, operation: str) -> None:
        """Notes a convolution that is neither a layer's own nor one left alone."""
        inside = [name for name, module in self._stack if isinstance(module, RelativeAttention) or name in self._left]
        if inside or not _CONVOLUTION.search(operation):
            return
        name, module = self._stack[-1] if self._stack else ("", self._network)
        reason = f"it calls {operation} as a function, which is not converted"
        self.calls.setdefault(name, LeftAlone(name, type(module).__name__, reason))


class _Operations(TorchDispatchMode):
    """Reports the name of every operation."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """Takes the function that is called with each operation's name."""
        super().__init__()
        self._report = report

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Reports the operation and computes it."""
        self._report(str(func._schema.name))
        return func(*args, **(kwargs or {}))
