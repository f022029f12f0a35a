"""Convolutions in other people's forward, and the paths of attention layers, seen while a network runs."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from convattn.convert.surgery import parts_of_attention
from convattn.layers import RelativeAttention

_CONVOLUTION = re.compile(r"::_?(\w+_)?(deform_)?conv(olution|_transpose|_tbc|[123]d|_depthwise)")
"""Names of operations that are convolutions."""


class Watch(TorchDispatchMode):
    """Follows a running network: the path of each attention layer, and convolutions that are called as functions.

    Attributes:
        paths: The path of each layer on the first images that reached it.
        calls: The convolution that a module called as a function, by the module's name.
    """

    def __init__(self, network: nn.Module, left: Sequence[str]) -> None:
        """Prepares to watch; calls inside the modules `left`, given by name, are not reported."""
        super().__init__()
        self._network = network
        self._left = set(left)
        self._running: list[tuple[str, nn.Module]] = []
        self._handles: list[RemovableHandle] = []
        self.paths: dict[nn.Module, str] = {}
        self.calls: dict[str, str] = {}

    def __enter__(self) -> "Watch":
        inner = parts_of_attention(self._network)
        for name, module in self._network.named_modules():
            if module in inner:
                continue
            enter = partial(self._enter, name)
            before = module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            after = module.register_forward_hook(self._leave, always_call=True)
            self._handles += [before, after]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def _enter(
        self, name: str, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Notes the running module, and the path of a layer."""
        self._running.append((name, module))
        if not isinstance(module, RelativeAttention) or module in self.paths:
            return
        x = module.batch_of(*positional, **named)
        if not isinstance(x, Tensor) or x.ndim != module.dims + 2:
            return  # the layer itself refuses such an argument
        self.paths[module] = module.plan(x.shape, x.dtype).path

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if self._running and self._running[-1][1] is module:
            self._running.pop()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Computes an operation; notes a convolution that is neither a layer's own nor one left alone."""
        operation = str(func._schema.name)
        if _CONVOLUTION.search(operation) and not self._is_known():
            name = self._running[-1][0] if self._running else ""
            self.calls.setdefault(name, operation)
        return func(*args, **(kwargs or {}))

    def _is_known(self) -> bool:
        """Tells whether an attention layer runs, or a module that was left alone."""
        names = {name for name, _ in self._running}
        attends = any(isinstance(module, RelativeAttention) for _, module in self._running)
        return attends or not names.isdisjoint(self._left)
