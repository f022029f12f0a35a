"""A whole network of timm as it is and as attention, at inference."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from benchmarks.cases.case import Case, Contender, bytes_held
from benchmarks.correctness import judge, roads
from benchmarks.record import Check
from benchmarks.setting import Setting, seeded
from convattn.convert import freeze, network_to_attention
from convattn.convert.network_runs import copy_network
from convattn.errors import MissingDependencyError
from convattn.layers import RelativeAttention

FORMS: Mapping[str, str] = MappingProxyType(
    {
        "original": "the network as it is",
        "planned": "attention, every layer as its plan says",
        "planned, frozen": "the same after `freeze`, which makes torch's convolutions of hard heads",
        "separable": "attention, every layer by a softmax along each axis",
        "separable, frozen": "the same after `freeze`, with all matrices made beforehand for images of this size",
    }
)
"""Forms of a network, each with what it is."""

_TURNS_OF_ONE = 20
_SMALL = 64


@dataclass(frozen=True, kw_only=True)
class NetworkCase(Case):
    """A network with random weights, as it is and as attention, at inference.

    Attributes:
        network: Name of the network in timm.
        images: Number of images.
        size: Rows and columns of the images.
    """

    network: str
    images: int
    size: int = 224

    @property
    def title(self) -> str:
        """What is measured, in words."""
        return f"the network {self.network} of timm, {self.size}×{self.size}, as it is and as attention, forward"

    @property
    def shape(self) -> tuple[int, ...]:
        """Images, channels, rows and columns."""
        return self.images, 3, self.size, self.size

    @property
    def turns(self) -> int:
        """Calls in place of one round: many of a single image, whose times vary more."""
        return _TURNS_OF_ONE if self.images == 1 else 1

    def contenders(self, setting: Setting) -> Mapping[str, Callable[[], Contender]]:
        """Builds all forms at once, so that every process that measures memory has the same history."""
        networks = {name: self.build(name, setting) for name in FORMS}
        original, one = networks["original"], setting.draw((1, *self.shape[1:]), self.seed)

        @cache
        def references() -> tuple[Mapping[str, Tensor], list[Mapping[str, Tensor]]]:
            exact = copy_network(original).double()
            return {"output": _infer(exact, one.double())}, [
                {"output": _infer(original, x)} for x in roads(one)
            ]

        def check(network: nn.Module) -> Check:
            return judge({"output": _infer(network, one)}, *references())

        images = setting.draw(self.shape, self.seed)
        return {name: partial(self._enter, name, networks[name], images, check) for name in FORMS}

    def build(self, name: str, setting: Setting) -> nn.Module:
        """Makes a form of the network with random weights, in evaluation mode."""
        try:
            from timm import create_model
        except ImportError:
            raise MissingDependencyError("timm", "bench") from None
        with seeded(self.seed):
            network = setting.place(create_model(self.network))
        if name == "original":
            return network
        impl = "auto" if name.startswith("planned") else "separable"
        made, _ = network_to_attention(
            network, impl=impl, images=setting.draw((1, 3, 32, 32), self.seed)
        )
        return (
            freeze(made, setting.draw((1, *self.shape[1:]), self.seed))
            if name.endswith("frozen")
            else made
        )

    def _enter(
        self, name: str, network: nn.Module, images: Tensor, check: Callable[[nn.Module], Check]
    ) -> Contender:
        small = images[:1] if name.endswith("frozen") else images[:1, :, :_SMALL, :_SMALL]
        return Contender(
            call=partial(_infer, network, images),
            describe=partial(_describe, name, network, images),
            check=partial(check, network),
            warm_up=partial(_infer, network, torch.zeros_like(small)),
            weights=bytes_held(network),
            ours=True,
        )


def _describe(name: str, network: nn.Module, images: Tensor) -> tuple[str, str | None]:
    """Returns what a form is, and how many layers take which path."""
    shapes, note = _shapes_met(network, images), FORMS[name]
    with torch.no_grad():
        paths = Counter(layer.plan(shape).path for layer, shape in shapes.items())
    if name == "planned":
        pairs = [all_pairs(layer, shape) / 2**20 for layer, shape in shapes.items()]
        note += f"; the weights of all pairs of pixels would take {max(pairs):,.0f} MiB in the layer that has most"
        note += f" and {sum(pairs):,.0f} MiB in all"
    return note, ", ".join(f"{path} × {count}" for path, count in paths.items()) or None


def all_pairs(layer: RelativeAttention, shape: tuple[int, ...]) -> int:
    """Counts the bytes of a weight for each head, query and key: one float32 each, the same for all images."""
    total = layer.num_heads * torch.float32.itemsize
    for axis in layer.geometry.axes(shape[2:]):
        total *= len(axis.queries) * axis.keys
    return total


def _infer(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return network(images)


def _shapes_met(network: nn.Module, images: Tensor) -> dict[RelativeAttention, tuple[int, ...]]:
    """Returns the shape of what each attention layer is given."""
    shapes: dict[RelativeAttention, tuple[int, ...]] = {}

    def note(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(module, RelativeAttention)
        shapes[module] = tuple(given[0].shape)

    hooks = [
        m.register_forward_pre_hook(note)
        for m in network.modules()
        if isinstance(m, RelativeAttention)
    ]
    try:
        _infer(network, images)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes
