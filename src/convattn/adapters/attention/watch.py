"""Runs a model once and hands out the attention of each layer, with its layout, proved."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from convattn.adapters.attention.features import on_grid
from convattn.adapters.attention.kernels import Kernel, Proof
from convattn.adapters.attention.layout import AttentionCall, Layout
from convattn.adapters.attention.masks import allowed_of
from convattn.adapters.attention.operations import Operations
from convattn.adapters.attention.own import read_own
from convattn.adapters.attention.registry import is_own, reader, refusal
from convattn.adapters.attention.seen import Frame, Seen
from convattn.adapters.attention.state import as_it_was
from convattn.adapters.attention.survey import chosen_layers, require_watchable
from convattn.convert.classes import full_name
from convattn.convert.network.modules import names_by_module
from convattn.convert.network.running import Arguments, read_arguments
from convattn.errors import ArgumentError, UnsupportedModelError

_Callback = Callable[[AttentionCall], None]


def watch(
    model: nn.Module,
    images: Tensor | tuple[Any, ...] | Mapping[str, Any],
    callback: _Callback,
    *,
    layers: str | Sequence[str] | None = None,
) -> None:
    """Runs a model in evaluation mode and calls back for every attention layer, in the order in which they run.

    Kernels stay fused. The weights are computed beside them, and it is proved on the first image that weights × values
    is what the module itself computed. Afterwards, and also when something raises, the model is as it was: training
    flags, hooks, random numbers.

    Args:
        model: The network.
        images: What it is called with: a tensor of images or token ids, a tuple of arguments, or named arguments.
        callback: Called with an `AttentionCall`; its tensors need not outlive the call.
        layers: Names of the layers to read, or patterns as in `fnmatch`; None reads all that `attention_layers` does
            not refuse.

    Raises:
        ArgumentError: The images do not fit the network, or no layer has such a name.
        UnsupportedModelError: A layer cannot be read; it says which and why.
    """
    require_watchable(model)
    wanted = chosen_layers(model, layers)
    given = read_arguments(model, images)
    batch = next((part.shape[0] for part in _tensors_of(given) if part.ndim), 0)
    run = _Run(model, wanted, callback, batch, strict=layers is None)
    with as_it_was(model):
        run(given)


class _Run:
    """One pass: the modules that are running, and what was seen of them."""

    def __init__(
        self, model: nn.Module, wanted: Mapping[nn.Module, str], callback: _Callback, images: int, *, strict: bool
    ) -> None:
        self._model, self._wanted, self._callback = model, wanted, callback
        self._images, self._strict = images, strict
        self._stack: list[Frame] = []
        self._kernels: list[list[Kernel]] = []
        self._features: dict[nn.Module, tuple[int, ...]] = {}
        self._operations = Operations(self._found)
        self._raised: BaseException | None = None

    def __call__(self, given: Arguments) -> None:
        with ExitStack() as watching:
            parts = {part for layer in self._wanted if is_own(layer) for part in layer.modules() if part is not layer}
            for module, names in names_by_module(self._model).items():
                if module not in parts:
                    pre = module.register_forward_pre_hook(self._enter(names[0]), prepend=True, with_kwargs=True)
                    watching.callback(pre.remove)
                    watching.callback(module.register_forward_hook(self._leave).remove)
            watching.enter_context(self._operations)
            try:
                self._model(*given.positional, **given.named)
            except Exception as error:
                if error is self._raised:
                    raise
                shapes = [tuple(part.shape) for part in _tensors_of(given)]
                raise ArgumentError(
                    f"images must fit the network, but on those of shape {shapes[0] if len(shapes) == 1 else shapes}"
                    f" it raised {type(error).__name__}: {error}"
                ) from error

    def _enter(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._operations.paused:
                self._stack.append(Frame(name, module, args, kwargs))
                self._kernels.append([])

        return hook

    def _leave(self, module: nn.Module, _: tuple[Any, ...], out: Any) -> None:
        if self._operations.paused:
            return
        frame, kernels = self._stack.pop(), self._kernels.pop()
        assert frame.module is module
        if isinstance(module, nn.Conv2d):
            self._features.pop(module, None)
            self._features[module] = tuple(out.shape)
        if module in self._wanted:
            self._operations.paused = True
            try:
                self._hand_out(frame, kernels, out[0] if isinstance(out, tuple) else out)
            except BaseException as error:
                self._raised = error
                raise
            finally:
                self._operations.paused = False

    def _found(self, kernel: Kernel) -> None:
        """Notes a product for the attention module that is running."""
        for frame, kernels in zip(reversed(self._stack), reversed(self._kernels), strict=True):
            if frame.module in self._wanted:
                kernels.append(kernel)
                return
            if reader(frame.module) is not None or refusal(frame.module) is not None or is_own(frame.module):
                return
        if self._strict:
            self._raised = UnsupportedModelError(self._unknown(kernel))
            raise self._raised

    def _unknown(self, kernel: Kernel) -> str:
        frame = next((frame for frame in reversed(self._stack) if list(frame.module.children())), self._stack[-1])
        sizes = " × ".join(map(str, kernel.shape()))
        return (
            f"{frame.name or 'the model'} ({full_name(type(frame.module))}) attends with weights of {sizes}, but where its"
            " tokens lie is not known; say so by register_attention, or name the layers to read"
        )

    def _hand_out(self, frame: Frame, kernels: list[Kernel], out: Tensor) -> None:
        name, module = frame.name, frame.module
        try:
            if is_own(module):
                layout, weights, proof = read_own(module, frame.args[0], out)  # type: ignore[arg-type]
                allowed = None
            else:
                layout, weights, proof, allowed = self._read(frame, kernels)
            if not proof.error <= proof.budget:
                raise UnsupportedModelError(
                    f"weights × values is {proof.error:.3g} off what it computed, and rounding explains {proof.budget:.3g}"
                )
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{name} ({type(module).__name__}): {error}") from error
        self._callback(
            AttentionCall(
                name=name,
                kind=full_name(type(module)),
                layout=layout,
                weights=weights,
                inputs=on_grid(_first(frame), layout, self._images),
                outputs=on_grid(out, layout, self._images),
                normalised=_rows_sum_to_one(weights),
                error=proof.error,
                budget=proof.budget,
                allowed=allowed,
            )
        )

    def _read(self, frame: Frame, kernels: list[Kernel]) -> tuple[Layout, Tensor, Proof, Tensor | None]:
        if len(kernels) != 1:
            count = "no product" if not kernels else f"{len(kernels)} products"
            raise UnsupportedModelError(f"{count} of weights and values was seen in it, where there must be one")
        kernel, known = kernels[0], reader(frame.module)
        assert known is not None
        shape, images = kernel.shape(), self._images
        seen = Seen(
            name=frame.name,
            module=frame.module,
            args=frame.args,
            kwargs=frame.kwargs,
            parents=tuple(reversed(self._stack)),
            images=images,
            shape=shape,
            mask=kernel.mask,
            features=self._features,
        )
        layout = known.read(seen)
        sizes = (layout.groups, layout.queries.shape[1], layout.keys.shape[1])
        lead = torch.Size(shape[:-2]).numel()
        if sizes[1:] != shape[-2:] or shape[0] % images or lead % (images * sizes[0]):
            raise UnsupportedModelError(
                f"weights of {' × '.join(map(str, shape))} for {images} images are not those of {sizes[0]} groups of"
                f" {sizes[1]} queries and {sizes[2]} keys"
            )
        weights = kernel.weights()
        proof = kernel.proof(weights, shape[0] // images)
        weights = weights.reshape(images, sizes[0], lead // (images * sizes[0]), *shape[-2:])
        given = frame.kwargs.get("attention_mask")
        given = given if isinstance(given, Tensor) and given.ndim == 4 else None
        layout, allowed = allowed_of(kernel, given, layout, weights.shape)
        return layout, weights, proof, allowed


def _rows_sum_to_one(weights: Tensor) -> bool:
    """Tells whether rows sum to one, up to the rounding of as many numbers."""
    off = (weights.sum(-1, dtype=torch.float64) - 1).abs().max().item()
    return off <= weights.shape[-1] * torch.finfo(weights.dtype).eps


def _first(frame: Frame) -> Any:
    return next((part for part in (*frame.args, *frame.kwargs.values()) if isinstance(part, Tensor)), None)


def _tensors_of(given: Arguments) -> list[Tensor]:
    held = [*given.positional, *given.named.values()]
    return [part for part in held if isinstance(part, Tensor)]
