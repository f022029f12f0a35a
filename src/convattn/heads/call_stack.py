"""What is known of a network while it runs: the calls of its modules, and the grids that images are cut into."""

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import prod
from threading import local
from typing import Any, final

import torch
from torch import Tensor, nn

from convattn.convert.network_runs import watched_modules
from convattn.errors import ShapeError, UnsupportedModelError
from convattn.heads.families.attention_class import CallContext
from convattn.heads.layout import times
from convattn.layers import RelativeAttention2d

_GIVING_IMAGES = (nn.Conv2d, RelativeAttention2d)


@final
class CallStack(local):
    """The modules of a network that run, and what its convolutions gave out last.

    Each thread has its own calls, and a copy has none.

    Attributes:
        running: The calls that have not returned, outermost first.
    """

    def __init__(self, grids: dict[str, list[tuple[int, ...]]]) -> None:
        """Begins without calls, in each thread anew, with the `grids` of all threads, of which there are none yet."""
        self.running: list[CallContext] = []
        # Each convolution that ran by its name, with the grid of what it gave out last; the latest is last
        self._outputs: dict[str, tuple[nn.Module, tuple[int, ...]]] = {}
        # Grids of what each convolution gave out in any thread, in their order
        self._grids = grids

    def __reduce__(self) -> tuple[type["CallStack"], tuple[dict[str, Any]]]:
        return CallStack, ({},)

    def attending(self, shape: tuple[int, ...]) -> CallContext:
        """Describes the innermost call, of which the weights have a shape, with the modules around it.

        UnsupportedModelError is raised if none is known.
        """
        if not self.running:
            raise UnsupportedModelError(
                "a layer with replaced heads must be called as `layer(…)`: `forward` passes over the hooks that tell"
                " where it runs"
            )
        *around, call = self.running
        features = dict(self._outputs.values())
        return replace(call, parents=tuple(reversed(around)), shape=shape, features=features)

    def source(self, grid: tuple[int, ...]) -> str:
        """Names the last convolution whose output has a grid, of those nearest to the innermost call; empty if none."""
        around = with_parents([self.running[-1].name])
        outputs = reversed(self._outputs.items())
        sources = [name for name, (_, sizes) in outputs if sizes == grid]
        return max(sources, key=lambda name: len(around & with_parents([name])), default="")

    def grid(self, source: str, positions: int) -> tuple[int, ...] | None:
        """Returns the grid of the image that runs; None if its convolution has not run.

        A checkpoint computes a layer again after other images have run. Then it is the one grid of so many positions
        that there was, and several raise ShapeError.
        """
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() < 0:
            _, sizes = self._outputs.get(source, (None, None))
            return sizes
        fitting = [grid for grid in self._grids.get(source, ()) if prod(grid) == positions]
        if len(fitting) > 1:
            grids = " and ".join(times(grid) for grid in fitting)
            raise ShapeError(
                f"images of {grids} patches cannot be told apart where a checkpoint computes a layer again; train"
                " without checkpoints, or on images of one size"
            )
        return fitting[0] if fitting else None

    def follow(self, network: nn.Module, names: Collection[str]) -> ExitStack:
        """Notes calls of modules by their names, and sizes of convolutions, until what is returned is closed."""
        hooks = ExitStack()
        for name, module in watched_modules(network):
            if isinstance(module, _GIVING_IMAGES):
                note = partial(self._note, name)
                hooks.enter_context(module.register_forward_hook(note))
            if name in names:
                enter = partial(self._enter, name)
                before = module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
                hooks.enter_context(before)
                after = module.register_forward_hook(self._leave, always_call=True)
                hooks.enter_context(after)
        return hooks

    def _enter(
        self, name: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        if not name:
            self.running.clear()  # of a call that was interrupted
        self.running.append(CallContext(name, module, args, named))

    def _leave(self, *_: Any) -> None:
        if self.running:
            self.running.pop()

    def _note(self, name: str, module: nn.Module, _: tuple[Any, ...], out: Tensor) -> None:
        sizes = tuple(map(int, out.shape[2:]))
        self._outputs.pop(name, None)
        self._outputs[name] = (module, sizes)
        if not torch.compiler.is_compiling():
            grids = self._grids.setdefault(name, [])
            if sizes not in grids:
                grids.append(sizes)


def with_parents(names: Iterable[str]) -> set[str]:
    """Returns dotted names of modules with those of the modules around them.

    Example:
        >>> sorted(with_parents(["blocks.0.attn"]))
        ['', 'blocks', 'blocks.0', 'blocks.0.attn']
    """
    every = set()
    for name in names:
        every.update(["", *accumulate(name.split("."), "{}.{}".format)])
    return every


def require_pixels(
    measured: tuple[int, ...], _module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Refuses, as a hook, images of another size, where no convolution tells the grid that a network cuts them into."""
    seen = [part for part in (*args, *named.values()) if isinstance(part, Tensor)]
    require_sizes(measured, tuple(seen[0].shape[2:]), "of {} pixels")


def require_sizes(
    measured: tuple[int, ...], sizes: tuple[int, ...], words: str = "cut into {} patches"
) -> None:
    """Raises ShapeError unless images have the sizes for which weights of heads were measured."""
    if sizes != measured:
        raise ShapeError(
            f"images must be {words.format(times(measured))}, on which the heads were measured, but"
            f" these are {words.format(times(sizes))}"
        )
