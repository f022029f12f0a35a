"""What a network with replaced heads knows while it runs: the calls around a layer, and the grids it is cut into."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from threading import local
from typing import Any, final

import torch
from torch import Tensor, nn

from convattn.errors import ShapeError
from convattn.heads.catalogue import convolves
from convattn.heads.families.attention_class import CallContext
from convattn.heads.layout import times


class _Thread(local):
    """What runs in one thread.

    Attributes:
        running: The calls that have not returned, outermost first.
        sizes: Grid of what each convolution gave out last, by its name.
    """

    def __init__(self) -> None:
        self.running: list[CallContext] = []
        self.sizes: dict[str, tuple[int, ...]] = {}


@final
class CallStack:
    """The modules of a network that run, outermost first, and what its convolutions gave out last.

    Each thread has its own calls, and a copy has none.
    """

    def __init__(self) -> None:
        """Begins without calls."""
        self._thread = _Thread()
        # Grids of what each convolution gave out in any thread, in their order
        self._grids: dict[str, list[tuple[int, ...]]] = {}

    def __reduce__(self) -> tuple[type["CallStack"], tuple[()]]:
        return CallStack, ()

    def grid(self, source: str, positions: int) -> tuple[int, ...] | None:
        """Returns the grid of the image that runs; None if its convolution has not run.

        A checkpoint computes a layer again after other images have run. Then it is the one grid of so many positions
        that there was, and several raise ShapeError.
        """
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() < 0:
            return self._thread.sizes.get(source)
        fitting = [grid for grid in self._grids.get(source, ()) if prod(grid) == positions]
        if len(fitting) > 1:
            grids = " and ".join(times(grid) for grid in fitting)
            raise ShapeError(
                f"images of {grids} patches cannot be told apart where a checkpoint computes a layer again; train"
                " without checkpoints, or on images of one size"
            )
        return fitting[0] if fitting else None

    def follow(self, network: nn.Module, layers: Sequence[str]) -> None:
        """Notes from now on the sizes of convolutions, and the calls of the modules around some layers."""
        for name, module in network.named_modules():
            if convolves(module):
                module.register_forward_hook(partial(self._note, name))
            if any(not name or layer.startswith(f"{name}.") for layer in layers):
                enter = partial(self._enter, name)
                module.register_forward_pre_hook(enter, with_kwargs=True)
                module.register_forward_hook(self._leave, always_call=True)

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> CallContext:
        """Describes a call of a layer by the modules that run around it."""
        parents = tuple(reversed(self._thread.running))
        outermost = parents[-1] if parents else CallContext(name, module, args, named)
        features = {}
        for place, part in outermost.module.named_modules(prefix=outermost.name):
            if place in self._thread.sizes:
                features[part] = self._thread.sizes[place]
        return CallContext(name, module, args, named, parents, features=features)

    def _enter(
        self, name: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        if not name:
            self._thread.running.clear()  # of a call that was interrupted
        self._thread.running.append(CallContext(name, module, args, named))

    def _leave(self, *_: Any) -> None:
        if self._thread.running:
            self._thread.running.pop()

    def _note(
        self, name: str, _module: nn.Module, _arguments: tuple[Any, ...], out: Tensor
    ) -> None:
        sizes = tuple(map(int, out.shape[2:]))
        self._thread.sizes[name] = sizes
        if not torch.compiler.is_compiling():
            grids = self._grids.setdefault(name, [])
            if sizes not in grids:
                grids.append(sizes)


@final
@dataclass(frozen=True)
class ImageSize:
    """Hook that refuses images of another size, where no convolution tells the grid that a network cuts them into."""

    sizes: tuple[int, ...]

    def __call__(
        self, _module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Raises ShapeError for other sizes."""
        seen = [part for part in (*arguments, *named.values()) if isinstance(part, Tensor)]
        require_sizes(self.sizes, tuple(seen[0].shape[2:]), "of {} pixels")


def require_sizes(
    measured: tuple[int, ...], sizes: tuple[int, ...], words: str = "cut into {} patches"
) -> None:
    """Raises ShapeError unless images have the sizes for which weights of heads were measured."""
    if sizes != measured:
        raise ShapeError(
            f"images must be {words.format(times(measured))}, on which the heads were measured, but"
            f" these are {words.format(times(sizes))}"
        )
