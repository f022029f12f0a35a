"""What a network with replaced heads knows while it runs: the calls around a layer, and the grids it is cut into."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from torch import Tensor, nn

from convattn.errors import ShapeError
from convattn.heads.catalogue import convolves
from convattn.heads.families.attention_class import CallContext


@final
@dataclass
class CallStack:
    """The modules of a network that run, outermost first, and what its convolutions gave out last.

    Attributes:
        sizes: Grid of what each convolution gave out last, by its name.
        running: The calls that have not returned.
    """

    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    running: list[CallContext] = field(default_factory=list)

    def follow(self, network: nn.Module, layers: Iterable[str]) -> None:
        """Notes from now on the sizes of convolutions, and the calls of the modules around some layers."""
        around = set()
        for layer in layers:
            parts = layer.split(".")
            around |= {".".join(parts[:depth]) for depth in range(len(parts))}
        for name, module in network.named_modules():
            if convolves(module):
                module.register_forward_hook(partial(self._note, name))
            if name in around:
                enter = partial(self._enter, name)
                module.register_forward_pre_hook(enter, with_kwargs=True)
                module.register_forward_hook(self._leave, always_call=True)

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> CallContext:
        """Describes a call of a layer by the modules that run around it."""
        parents = tuple(reversed(self.running))
        features = {}
        for part in (parents[-1].module if parents else module).modules():
            for hook in part._forward_hooks.values():
                note: Any = hook
                own = isinstance(hook, partial) and note.func == self._note
                if own and note.args[0] in self.sizes:
                    features[part] = self.sizes[note.args[0]]
        return CallContext(name, module, args, named, parents, features=features)

    def _enter(
        self, name: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self.running.append(CallContext(name, module, args, named))

    def _leave(self, *_: Any) -> None:
        self.running.pop()

    def _note(
        self, name: str, _module: nn.Module, _arguments: tuple[Any, ...], out: Tensor
    ) -> None:
        self.sizes[name] = tuple(map(int, out.shape[2:]))


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
            f"images must be {words.format(_words(measured))}, on which the heads were measured, but"
            f" these are {words.format(_words(sizes))}"
        )


def _words(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))
