"""One run over the images: batches through the network, and every layer measured."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from convattn.adapters.attention import AttentionCall, watch
from convattn.analysis.measure.layer import LayerMeasure
from convattn.errors import ArgumentError, ConvAttnError

_WEIGHTS_AT_ONCE = 192 * 2**20
"""Bytes of the attention weights of one layer that a batch may have."""

_FIRST, _MOST = 2, 32
"""Images of the first batch, from which the memory of the others is known, and of any other."""


@dataclass(frozen=True)
class Settings:
    """How a network is measured."""

    layers: tuple[str, ...] | None  # Names of the layers; None for all
    kernel_size: int  # Taps along each axis of the convolution that layers are compared with
    groups: int  # Groups of images for the standard errors
    seed: int  # Seed of the order of the images


class Run:
    """The measures of all layers over some images; batches are added whole or not at all."""

    def __init__(self, count: int, settings: Settings) -> None:
        """Starts with none of `count` images."""
        self.settings, self.done = settings, 0
        self.layers: dict[str, LayerMeasure] = {}
        self._shape: tuple[int, ...] | None = None  # of one image
        self._like = self  # a run that knows how much memory an image takes
        order = torch.randperm(count, generator=torch.Generator().manual_seed(settings.seed))
        self._order = order.tolist()
        self._fitted = count - max(1, round(count / 5)) if count > 1 else count

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self._order)

    def go_on(
        self,
        model: nn.Module,
        image: Callable[[int], Tensor],
        after: Callable[[int], None] = lambda _: None,
        like: "Run | None" = None,
    ) -> None:
        """Measures the images that are left.

        `image` returns one by its number, `after` learns how many came, and `like` is a run that knows how much memory
        an image takes.
        """
        self._like = self if like is None else like
        for start, stop in self._batches():
            numbers = self._order[start:stop]
            batch = self._batch([image(number) for number in numbers])
            members = torch.arange(start, stop) * min(self.settings.groups, self.count) // self.count
            self._add(model, batch, members, held_out=start >= self._fitted)
            self.done = stop
            after(stop - start)

    def _batch(self, images: Sequence[Tensor]) -> Tensor:
        """Makes a batch; images of different sizes, or that hold no finite numbers, raise ArgumentError."""
        shapes = {tuple(image.shape) for image in images} | ({self._shape} if self._shape else set())
        if len(shapes) > 1:
            raise ArgumentError(f"images must be of one size, but are of {' and '.join(map(str, sorted(shapes)))}")
        self._shape = shapes.pop()
        batch = torch.stack(list(images))
        if batch.is_floating_point() and not bool(torch.isfinite(batch).all()):
            raise ArgumentError("images must hold finite numbers, but some are infinite or nan")
        return batch

    def _batches(self) -> Iterator[tuple[int, int]]:
        """Cuts the images that are left into batches, none of which holds a single image if that can be helped."""
        for end in (self._fitted, self.count):
            while self.done < end:
                left = end - self.done
                size = min(left, self._size())
                yield self.done, self.done + (left if left - size == 1 else size)

    def _size(self) -> int:
        known = self.layers or self._like.layers
        if not known:
            return _FIRST
        largest = max(layer.facts.bytes for layer in known.values())
        return max(_FIRST, min(_MOST, _WEIGHTS_AT_ONCE // max(largest, 1)))

    def _add(self, model: nn.Module, batch: Tensor, members: Tensor, *, held_out: bool) -> None:
        """Runs the network on one batch; if that does not end, nothing of the batch stays."""
        layers = {name: layer.copy() for name, layer in self.layers.items()}
        calls: Counter[str] = Counter()

        def add(call: AttentionCall) -> None:
            calls[call.name] += 1
            name = call.name if calls[call.name] == 1 else f"{call.name} (call {calls[call.name]})"
            if name not in layers:
                layers[name] = LayerMeasure.begin(call, self.settings.groups, self.settings.kernel_size)
            layers[name].add(call, members, held_out=held_out)

        try:
            watch(model, batch, add, layers=self.settings.layers)
        except (ConvAttnError, MemoryError):
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise ArgumentError(
                f"images must be what {type(model).__name__} takes, but on a batch of shape {tuple(batch.shape)} it"
                f" raised {type(error).__name__}: {reason}"
            ) from error
        self.layers = layers

    def state(self) -> dict[str, Any]:
        """Returns everything as plain values and tensors."""
        return {"done": self.done, "layers": {name: layer.state() for name, layer in self.layers.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken."""
        self.layers = {name: LayerMeasure.from_state(layer) for name, layer in state["layers"].items()}
        self.done = int(state["done"])
