"""One run over the images: batches through the network, and every layer measured."""

import copy
import hashlib
import io
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from math import prod
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Int64
from torch import Tensor, nn

from convattn.errors import ArgumentError, CheckpointError, ConvAttnError, UnsupportedModelError, lacks_memory, must_be
from convattn.files import as_path, write_atomically
from convattn.heads.head_sums import NO_POSITION, HeadSums, Pairs, empty_sums, has_positions, make_pairs, sum_heads
from convattn.heads.kernel_fit import ConvolutionFit, KernelFit
from convattn.heads.layout import AttentionCall, Layout
from convattn.heads.reading import watch
from convattn.wording import ITSELF

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def digest_tensor(before: str, tensor: Tensor) -> str:
    """Returns a hash of the hash `before` and of a tensor's values."""
    found = hashlib.sha256(f"{before} {tuple(tensor.shape)} {tensor.dtype}".encode())
    found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def digest_model(model: nn.Module) -> str:
    """Returns a hash of a network: its class, its modules with their plain attributes, parameters and buffers by name.

    Sizes that no tensor has, as the number of heads, are such attributes; not all of them are in what `repr` shows.
    """
    found = hashlib.sha256(f"{type(model).__module__}.{type(model).__qualname__}".encode())
    found.update(_ADDRESS.sub("", repr(model)).encode())
    for name, module in model.named_modules():
        plain = [(key, value) for key, value in vars(module).items() if isinstance(value, int | float | str)]
        found.update(repr((name, sorted(pair for pair in plain if pair[0] != "training"))).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.update(f"{name} {digest_tensor('', tensor)}".encode())
    return found.hexdigest()


@dataclass(frozen=True)
class Facts:
    """What the calls of a layer say about it."""

    name: str  # Dotted name
    kind: str  # Full name of its class
    normalised: bool  # Whether the rows of all calls sum to 1
    masked: bool  # Whether masks differed between images
    error: float  # Largest difference of weights × values to the module's own result
    budget: float  # What rounding explains there
    bytes: int  # Memory of the weights of one image


class LayerMeasure:
    """Sums of one layer over the images seen so far."""

    def __init__(self, facts: Facts, pairs: Pairs, sums: HeadSums, fit: ConvolutionFit | None) -> None:
        """Takes over what is known."""
        self.facts, self.pairs, self.sums, self.fit = facts, pairs, sums, fit
        self.kernels = KernelFit()

    @property
    def images(self) -> int:
        """Number of images."""
        return int(self.sums.images.sum())

    @classmethod
    def begin(cls, call: AttentionCall, groups: int, kernel_size: int) -> "LayerMeasure":
        """Starts with the first call of a layer, which `add` then adds."""
        pairs = make_pairs(call.layout, call.name or ITSELF)
        facts = Facts(call.name, call.kind, True, False, 0.0, 0.0, call.weights[0].numel() * 4)
        positions = prod(call.layout.grid)
        known = call.inputs is not None and call.outputs is not None
        whole = known and call.inputs.shape[1] == call.outputs.shape[1] == positions  # type: ignore[union-attr]
        sums = empty_sums(call, pairs, groups)
        return cls(facts, pairs, sums, ConvolutionFit(call.layout.grid, kernel_size) if whole else None)

    def add(self, call: AttentionCall, members: Int64[Tensor, " images"], *, held_out: bool) -> None:
        """Adds a batch; `members` are the groups of its images, held out from the fit of the convolution or not."""
        if not self.pairs.fits(call.layout):
            raise UnsupportedModelError(
                f"{call.name or ITSELF}: queries and keys lie elsewhere than for the images before"
            )
        if call.weights.shape[2] != self.sums.squares.shape[1]:
            raise UnsupportedModelError(
                f"{call.name or ITSELF}: it has another number of heads than for the images before"
            )
        groups = len(self.sums.images)
        if held_out:
            self.kernels.score(call, self.pairs, self.sums)
        added = sum_heads(call, self.pairs, members, groups)
        if not bool(torch.isfinite(added.squares).all()):
            raise ArgumentError(
                f"images must give finite attention, but weights of {call.name or ITSELF} are not finite"
            )
        self.sums = self.sums.plus(added)
        if self.fit is not None:
            assert call.inputs is not None
            assert call.outputs is not None
            (self.fit.score if held_out else self.fit.fit)(call.inputs, call.outputs)
        worse = call if call.error - call.budget > self.facts.error - self.facts.budget else self.facts
        if self.facts.budget == 0:
            worse = call
        self.facts = replace(
            self.facts,
            normalised=self.facts.normalised and call.normalised,
            masked=self.facts.masked or call.allowed is not None,
            error=worse.error,
            budget=worse.budget,
        )

    def copy(self) -> "LayerMeasure":
        """Returns a measure that stays as it is when this one goes on."""
        fit = self.fit
        if fit is not None:
            fit = ConvolutionFit(fit.grid, fit.kernel_size)
            fit.state = dict(self.fit.state)  # type: ignore[union-attr]
        made = LayerMeasure(self.facts, self.pairs, self.sums, fit)
        made.kernels.state = dict(self.kernels.state)
        return made

    def state(self) -> dict[str, Any]:
        """Returns everything as plain values and tensors."""
        layout = self.pairs.layout
        return {
            "facts": asdict(self.facts),
            "layout": {item.name: getattr(layout, item.name) for item in fields(layout)},
            "sums": {item.name: getattr(self.sums, item.name) for item in fields(self.sums)},
            "kernels": self.kernels.state,
            "fit": None if self.fit is None else {"kernel_size": self.fit.kernel_size, "state": self.fit.state},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "LayerMeasure":
        """Goes on where `state` was taken."""
        layout = Layout(**{**state["layout"], "grid": tuple(state["layout"]["grid"])})
        facts = Facts(**state["facts"])
        fit = None
        if state["fit"] is not None:
            fit = ConvolutionFit(layout.grid, state["fit"]["kernel_size"])
            fit.state = dict(state["fit"]["state"])
        made = cls(facts, make_pairs(layout, facts.name), HeadSums(**state["sums"]), fit)
        made.kernels.state = dict(state["kernels"])
        return made


UNTRAINED = "untrained weights"
SHUFFLED = "shuffled images"

_PATCHES = {
    1: ("channels (cells length)", "cells channels length", ("cells",)),
    2: ("channels (rows height) (cols width)", "(rows cols) channels height width", ("rows", "cols")),
}
"""An image and its patches, by the number of axes of the grid."""


def untrained(model: nn.Module, seed: int) -> nn.Module:
    """Copies a network with the entries of every parameter in another order.

    So each tensor keeps its sizes and the distribution of its numbers, and what training has arranged is gone. What is
    fixed by architecture stays: buffers, and parameters whose entries are all alike.
    """
    made = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(seed)
    # Tensors of one size share an order, which takes longer to draw than to apply, but each starts elsewhere in it:
    # what two of them, as the weights of queries and keys, have in common is gone as well.
    orders: dict[int, Tensor] = {}
    with torch.no_grad():
        for parameter in made.parameters():
            count = parameter.numel()
            if count not in orders:
                orders[count] = torch.randperm(count, generator=draw)
            order = orders[count].to(parameter.device)
            start = int(torch.randint(max(count, 1), (), generator=draw))
            parameter.copy_(parameter.flatten().index_select(0, order).roll(start).view(parameter.shape))
    return made


def can_shuffle(shape: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """Says whether an image can be cut into patches, one for each position of the first layer's grid."""
    sizes = shape[-len(grid) :]
    if len(shape) == 1:
        return len(grid) == 1
    return len(grid) in _PATCHES and len(shape) == len(grid) + 1 and all(map(int.__ge__, sizes, grid))


def shuffled(image: Tensor, grid: tuple[int, ...], seed: int) -> Tensor:
    """Puts the patches of an image in another order; what does not fill a patch, at the far edges, stays.

    An image without channels is a sequence of tokens, whose first and last stay: most tokenizers put marks there.
    """
    draw = torch.Generator().manual_seed(seed)
    if image.ndim == 1:
        inner = 1 + torch.randperm(max(len(image) - 2, 0), generator=draw).to(image.device)
        return torch.cat([image[:1], image[inner], image[1:][-1:]])
    sizes = [size // cells for size, cells in zip(image.shape[1:], grid, strict=True)]
    made = image.clone()
    part = made[:, *(slice(cells * size) for cells, size in zip(grid, sizes, strict=True))]
    pixels, patches, lengths = _PATCHES[len(grid)]
    known = dict(zip(lengths, grid, strict=True))
    flat = rearrange(part, f"{pixels} -> {patches}", **known)
    mixed = flat[torch.randperm(len(flat), generator=draw).to(image.device)]
    part.copy_(rearrange(mixed, f"{patches} -> {pixels}", **known))
    return made


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


_SCHEMA = 2
_EVERY = 30.0
"""Seconds between two writes, at least."""


class PartialFile:
    """The file with which an interrupted analysis goes on: the SHA-256 of all that follows, and the state of the runs.

    A flipped bit in the sums would otherwise be a number in the report.
    """

    def __init__(self, path: str | os.PathLike[str], of: Mapping[str, Any]) -> None:
        """Names the file, and what the analysis is of: model, images and settings, as plain values."""
        self.path, self._of, self._written = as_path(path, "partial"), dict(of), time.monotonic()
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise ArgumentError(must_be("partial", "a file in a folder that exists", str(path)))

    def restore(self, runs: Mapping[str, Run]) -> None:
        """Lets the runs go on where the file was written; nothing happens if there is none.

        A file that is damaged, or of another analysis, raises CheckpointError.
        """
        if not self.path.exists():
            return
        try:
            whole = self.path.read_bytes()
            size = hashlib.sha256().digest_size
            if hashlib.sha256(whole[size:]).digest() != whole[:size]:
                raise ValueError("it is damaged")
            content = torch.load(io.BytesIO(whole[size:]), weights_only=True)
            of = {"version": content["schema"], **content["of"]}
            different = [name for name, mine in {"version": _SCHEMA, **self._of}.items() if of.get(name) != mine]
            if not different:
                for name, state in content["states"].items():
                    runs[name].restore(state)
        except Exception as error:
            raise CheckpointError(f"{self.path} is not a partial report: {type(error).__name__}; delete it") from error
        if different:
            raise self.of_another(*different)

    def of_another(self, *different: str) -> CheckpointError:
        """Makes the error that says in what another analysis, which the file is of, differs."""
        what = ", ".join(different)
        return CheckpointError(f"{self.path} is a partial report of another analysis ({what}); delete it")

    def write(self, runs: Mapping[str, Run], *, now: bool) -> None:
        """Writes the states of all runs; if not `now`, only if the last time was long ago."""
        if not now and time.monotonic() - self._written < _EVERY:
            return
        buffer = io.BytesIO()
        states = {name: run.state() for name, run in runs.items()}
        torch.save({"schema": _SCHEMA, "of": self._of, "states": states}, buffer)
        content = buffer.getvalue()
        write_atomically(self.path, hashlib.sha256(content).digest() + content)
        self._written = time.monotonic()
