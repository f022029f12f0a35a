"""Reads the attention of every layer of a network in one watched pass: layout, weights, and the proof of both."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from convattn.convert.surgery import Arguments, full_name, keep_random_state, names_by_module, read_arguments
from convattn.encodings import Encoding
from convattn.errors import ArgumentError, UnsupportedModelError, must_be_a, must_fit
from convattn.functional.autocast import without_autocast
from convattn.heads.catalogue import (
    chosen_layers,
    is_known,
    is_own,
    reader,
    require_watchable,
)
from convattn.heads.kernels import Kernel, Operations, allowed_of
from convattn.heads.layout import (
    AttentionCall,
    Frame,
    Layout,
    Seen,
    on_grid,
)
from convattn.heads.own_layers import read_own


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Puts a model in evaluation mode, without gradients and autocast; restores flags and random numbers on leaving."""
    training = [(module, module.training) for module in model.modules()]
    with ExitStack() as settings:
        settings.enter_context(keep_random_state(model))
        settings.enter_context(torch.no_grad())
        for device in {torch.device("cpu"), *(parameter.device for parameter in model.parameters())}:
            settings.enter_context(without_autocast(device))
        try:
            model.eval()
            yield
        finally:
            for module, flag in training:
                module.training = flag


def read_call(
    frame: Frame,
    parents: tuple[Frame, ...],
    kernels: list[Kernel],
    out: Tensor,
    *,
    images: int,
    features: Mapping[nn.Module, tuple[int, ...]],
) -> AttentionCall:
    """Reads a call, or raises UnsupportedModelError with the reason alone.

    A registered `read` that returns no layout raises ArgumentError.
    """
    module, given = frame.module, _first_tensor(frame)
    allowed = None
    if is_own(module):
        given = module.batch_of(*frame.args, **frame.kwargs)  # type: ignore[operator]
        out = out if out.ndim == given.ndim else out[None]
        layout, weights, proof = read_own(module, given, out)  # type: ignore[arg-type]
        rounding = torch.finfo(weights.dtype).eps
    else:
        known, kernel = reader(module), _one(kernels)
        assert known is not None
        shape, rounding = kernel.shape(), kernel.rounding
        seen = Seen(
            name=frame.name,
            module=module,
            args=frame.args,
            kwargs=frame.kwargs,
            parents=parents,
            images=images,
            shape=shape,
            mask=kernel.mask,
            features=features,
        )
        layout = known.read(seen)
        if not isinstance(layout, Layout):
            raise ArgumentError(must_be_a(f"what `read` of {type(module).__name__} returns", "a Layout", layout))
        groups, queries, keys = layout.groups, layout.queries.shape[1], layout.keys.shape[1]
        lead = torch.Size(shape[:-2]).numel()
        if (queries, keys) != shape[-2:] or not images or shape[0] % images or lead % (images * groups):
            raise UnsupportedModelError(
                f"weights of {' × '.join(map(str, shape))} for {images} images are not those of {groups} groups of"
                f" {queries} queries and {keys} keys"
            )
        assert kernel.made is not None
        weights, proof = kernel.made
        heads = lead // (images * groups)
        sizes = (images, heads, groups) if known.heads_first else (images, groups, heads)
        weights = weights.reshape(*sizes, queries, keys)
        weights = weights.transpose(1, 2) if known.heads_first else weights
        mask = frame.kwargs.get("attention_mask")
        mask = mask if isinstance(mask, Tensor) and mask.ndim == 4 else None
        layout, allowed = allowed_of(kernel, mask, layout, weights.shape)
    if not proof.error <= proof.budget:
        raise UnsupportedModelError(
            f"weights × values is {proof.error:.3g} off what it computed, and rounding explains {proof.budget:.3g}"
        )
    return AttentionCall(
        name=frame.name,
        kind=full_name(type(module)),
        layout=layout,
        weights=weights,
        inputs=on_grid(given, layout, images),
        outputs=on_grid(out, layout, images),
        normalised=rows_sum_to_one(weights, rounding),
        error=proof.error,
        budget=proof.budget,
        allowed=allowed,
    )


def _one(kernels: list[Kernel]) -> Kernel:
    if len(kernels) == 1:
        return kernels[0]
    count = "no product" if not kernels else f"{len(kernels)} products"
    raise UnsupportedModelError(f"{count} of weights and values was seen in it, where there must be one")


def rows_sum_to_one(weights: Tensor, rounding: float) -> bool:
    """Tells whether rows sum to one, if every weight is off by `rounding` of itself.

    Two sums of n terms are rounded as well, that by which softmax divided and the one here. Each may be off by n · u,
    u = eps / 2, in any order of summation.
    """
    off = (weights.sum(-1) - 1).abs().max().item()
    return off <= rounding + weights.shape[-1] * torch.finfo(weights.dtype).eps


def _first_tensor(frame: Frame) -> Any:
    return next((part for part in (*frame.args, *frame.kwargs.values()) if isinstance(part, Tensor)), None)


_REPLACED = "convattn.heads.convolved_attention."
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


def watch(
    model: nn.Module,
    images: Tensor | tuple[Any, ...] | Mapping[str, Any],
    callback: Callable[[AttentionCall], None],
    *,
    layers: str | Sequence[str] | None = None,
    without: str | Sequence[str] | None = None,
) -> None:
    """Runs a model in evaluation mode and calls back for every attention layer, in the order in which they run.

    Kernels stay fused. The weights are computed beside them, and it is proved on the first image that weights × values
    is what the module itself computed. Afterwards, and also when something raises, the model is as it was: training
    flags, hooks, random numbers.

    Args:
        model: The network.
        images: What it is called with: a tensor of images or token ids, a tuple of arguments, or named arguments.
        callback: Called with an `AttentionCall`; its tensors are valid during the call: copy what you keep.
        layers: Names of the layers to read, or patterns as in `fnmatch`; None reads all that `attention_layers` does
            not refuse, and raises if another module attends.
        without: Names or patterns of layers whose weights are not computed; they run all the same.

    Raises:
        ArgumentError: The images do not fit the network, or no layer has such a name.
        UnsupportedModelError: A layer cannot be read; it says which and why.

    Example:
        >>> import torch
        >>> from convattn.layers import RelativeAttention2d
        >>> layer = RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic")
        >>> watch(layer, torch.zeros(2, 3, 4, 6), lambda call: print(tuple(call.weights.shape)))
        (2, 1, 9, 24, 24)
    """
    require_watchable(model)
    if not callable(callback):
        raise ArgumentError(must_be_a("callback", "a function of an AttentionCall", callback))
    wanted = chosen_layers(model, layers, without)
    given = read_arguments(model, images)
    with as_it_was(model):
        Run(model, wanted, callback, strict=layers is None)(given)
