"""One watched pass: which modules are running, and the products of weights and values that are seen in them."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from convattn.adapters.attention.kernels import Kernel
from convattn.adapters.attention.layout import AttentionCall
from convattn.adapters.attention.operations import Operations
from convattn.adapters.attention.reading import read_call
from convattn.adapters.attention.registry import is_known, is_own
from convattn.adapters.attention.seen import Frame
from convattn.convert.classes import full_name
from convattn.convert.network.modules import names_by_module
from convattn.convert.network.running import Arguments
from convattn.encodings import Encoding
from convattn.errors import ArgumentError, UnsupportedModelError, must_fit

_REPLACED = "convattn.adapters.replacement."
"""Where the modules lie that stand for replaced heads."""


class Run:
    """Watches one call of a model. Hooks are set before it and removed after it."""

    def __init__(
        self,
        model: nn.Module,
        wanted: Mapping[nn.Module, str],
        callback: Callable[[AttentionCall], None],
        *,
        strict: bool,
    ) -> None:
        """Prepares to read the layers `wanted`; `strict` refuses attention in modules that are not known."""
        self._model, self._wanted, self._callback, self._strict = model, wanted, callback, strict
        self._images = 0
        self._stack: list[Frame] = []
        self._kernels: list[list[Kernel]] = []
        self._features: dict[nn.Module, tuple[int, ...]] = {}
        self._operations = Operations(self._found)
        self._raised: BaseException | None = None

    def __call__(self, given: Arguments) -> None:
        """Runs the model; if it raises, ArgumentError says on what."""
        tensors = [
            part for part in (*given.positional, *given.named.values()) if isinstance(part, Tensor) and part.ndim
        ]
        self._images = tensors[0].shape[0] if tensors else 0
        with ExitStack() as watching:
            every = names_by_module(self._model)
            read = {part for layer in every if is_own(layer) for part in layer.modules() if part is not layer}
            read |= {part for module in every if isinstance(module, Encoding) for part in module.modules()}
            for module, names in every.items():
                if module not in read:  # others are called, and may have hooks
                    enter = module.register_forward_pre_hook(self._enter(names[0]), prepend=True, with_kwargs=True)
                    watching.callback(enter.remove)
                    watching.callback(module.register_forward_hook(self._leave).remove)
            watching.enter_context(self._operations)
            try:
                self._model(*given.positional, **given.named)
            except Exception as error:
                if error is self._raised:
                    raise
                shapes = [tuple(tensor.shape) for tensor in tensors]
                words = f"those of shape {shapes[0] if len(shapes) == 1 else shapes}"
                raise ArgumentError(must_fit(words, error)) from error

    def _enter(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._operations.paused:
                self._stack.append(Frame(name, module, args, kwargs))
                self._kernels.append([])

        return hook

    def _leave(self, module: nn.Module, _: tuple[Any, ...], out: Any) -> None:
        if self._operations.paused:
            return
        while self._stack[-1].module is not module:  # a module that raised, and was caught
            self._stack.pop()
            self._kernels.pop()
        frame, kernels = self._stack.pop(), self._kernels.pop()
        if isinstance(module, nn.Conv2d) or (is_own(module) and module.dims == 2):  # it may stand for a convolution
            self._features.pop(module, None)
            self._features[module] = tuple(out.shape)
        if module in self._wanted:
            self._operations.paused = True
            try:
                with torch._C.DisableTorchFunction():
                    self._hand_out(frame, kernels, out[0] if isinstance(out, tuple) else out)
            except BaseException as error:
                self._raised = error
                raise
            finally:
                self._operations.paused = False

    def _hand_out(self, frame: Frame, kernels: list[Kernel], out: Tensor) -> None:
        """Reads one layer, and gives it to the callback."""
        parents = tuple(reversed(self._stack))
        try:
            call = read_call(frame, parents, kernels, out, images=self._images, features=self._features)
        except UnsupportedModelError as error:
            raise _named(frame, error) from error
        self._callback(call)

    def _found(self, kernel: Kernel) -> None:
        """Notes a product for the attention module that is running."""
        for frame, kernels in zip(reversed(self._stack), reversed(self._kernels), strict=True):
            if frame.module in self._wanted:
                try:
                    kernels.append(kernel.settle(self._images))
                except UnsupportedModelError as error:
                    self._raised = _named(frame, error)
                    raise self._raised from error
                return
            if is_known(frame.module):
                return
        if self._strict:
            frame = next((frame for frame in reversed(self._stack) if list(frame.module.children())), self._stack[-1])
            sizes, kind = " × ".join(map(str, kernel.shape())), full_name(type(frame.module))
            where = f"{frame.name or 'the model'} ({kind}) attends with weights of {sizes}, but"
            if kind.startswith(_REPLACED):
                where += " layers whose heads were replaced are not read; read the network before, or name other layers"
            else:
                where += " where its tokens lie is not known; say so by register_attention, or name the layers to read"
            self._raised = UnsupportedModelError(where)
            raise self._raised


def _named(frame: Frame, error: UnsupportedModelError) -> UnsupportedModelError:
    return UnsupportedModelError(f"{frame.name} ({type(frame.module).__name__}): {error}")
