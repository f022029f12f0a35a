"""One run over the images: batches through the network, and every layer measured."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from convattn.adapters.attention import AttentionCall, watch
from convattn.analysis.measure.digests import digest_tensor
from convattn.analysis.measure.layer import LayerMeasure
from convattn.analysis.measure.pairs import NO_POSITION, has_positions
from convattn.errors import ArgumentError, ConvAttnError, UnsupportedModelError, lacks_memory
from convattn.records.words import ITSELF

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


@dataclass(frozen=True)
class _Progress:
    """What came of the images so far: replaced as a whole, so that a batch is in all of it or in none."""

    done: int  # Number of images
    layers: Mapping[str, LayerMeasure]
    passed_over: tuple[str, ...]  # Layers in which no query, or no key, has a position
    digest: str  # Hash of the images, in the order in which they came


class Run:
    """The measures of all layers over some images; batches are added whole or not at all."""

    def __init__(self, count: int, settings: Settings) -> None:
        """Starts with none of `count` images."""
        self.settings = settings
        self._progress = _Progress(0, {}, (), "")
        self._shape: tuple[int, ...] | None = None  # of one image
        self._like = self  # a run that knows how much memory an image takes
        order = torch.randperm(count, generator=torch.Generator().manual_seed(settings.seed))
        self._order = order.tolist()
        self._fitted = count - max(1, round(count / 5)) if count > 1 else count

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self._order)

    @property
    def done(self) -> int:
        """Number of images measured."""
        return self._progress.done

    @property
    def layers(self) -> Mapping[str, LayerMeasure]:
        """The layers by name, in the order in which they compute; a further call of one says its number."""
        return self._progress.layers

    @property
    def passed_over(self) -> tuple[str, ...]:
        """Layers in which no query, or no key, has a position."""
        return self._progress.passed_over

    def began_with(self, image: Callable[[int], Tensor]) -> bool:
        """Says whether the images measured are these."""
        return reduce(digest_tensor, map(image, self._order[: self.done]), "") == self._progress.digest

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
            images = [image(number) for number in numbers]
            members = torch.arange(start, stop) * min(self.settings.groups, self.count) // self.count
            layers, passed_over = self._measure(model, self._batch(images), members, held_out=start >= self._fitted)
            self._progress = _Progress(stop, layers, passed_over, reduce(digest_tensor, images, self._progress.digest))
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

    def _measure(
        self, model: nn.Module, batch: Tensor, members: Tensor, *, held_out: bool
    ) -> tuple[Mapping[str, LayerMeasure], tuple[str, ...]]:
        """Runs the network on one batch; returns the layers with it added, and those that are passed over."""
        layers = {name: layer.copy() for name, layer in self.layers.items()}
        passed_over = dict.fromkeys(self.passed_over)
        calls: Counter[str] = Counter()

        def add(call: AttentionCall) -> None:
            calls[call.name] += 1
            name = call.name if calls[call.name] == 1 else f"{call.name} (call {calls[call.name]})"
            if self.settings.layers is None and not has_positions(call.layout):
                passed_over[name or ITSELF] = None
                return
            if name not in layers:
                layers[name] = LayerMeasure.begin(call, self.settings.groups, self.settings.kernel_size)
            layers[name].add(call, members, held_out=held_out)

        try:
            watch(model, batch, add, layers=self.settings.layers)
        except ConvAttnError:
            raise
        except Exception as error:
            if lacks_memory(error):
                raise UnsupportedModelError(
                    f"there is not enough memory for the attention of {type(model).__name__} on a batch of shape"
                    f" {tuple(batch.shape)}: a layer's weights are heads × queries × keys numbers; choose other"
                    " layers, or smaller images"
                ) from error
            reason = " ".join(str(error).split())[:300]
            raise ArgumentError(
                f"images must be what {type(model).__name__} takes, but on a batch of shape {tuple(batch.shape)} it"
                f" raised {type(error).__name__}: {reason}"
            ) from error
        if not layers:
            seen = ", ".join(f"{name}: {NO_POSITION}" for name in passed_over) or "no layer ran"
            raise UnsupportedModelError(f"no attention of {type(model).__name__} can be measured: {seen}")
        return layers, tuple(passed_over)

    def state(self) -> dict[str, Any]:
        """Returns everything as plain values and tensors."""
        layers = {name: layer.state() for name, layer in self.layers.items()}
        return {**vars(self._progress), "layers": layers}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken; what is no state raises an error of any kind."""
        layers = {name: LayerMeasure.from_state(layer) for name, layer in state["layers"].items()}
        progress = _Progress(**{**state, "layers": layers})
        seen = {layer.images for layer in layers.values()}
        if not 0 <= progress.done <= self.count or seen != ({progress.done} if progress.done else set()):
            raise ValueError("the layers are not those of so many images")
        self._progress = progress
