"""One run over the images: batches through the network, and every layer measured; and what the controls change."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch
from einops import rearrange
from jaxtyping import Int64
from torch import Tensor, nn

from convattn.errors import ArgumentError, ConvAttnError, UnsupportedModelError, lacks_memory
from convattn.heads.head_sums import NO_POSITION, empty_sums, has_positions, make_pairs, sum_heads
from convattn.heads.kernel_fit import ConvolutionFit, KernelFit
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch
from convattn.wording import ITSELF

GROUPS, SEED = 10, 0
"""Groups of images for the standard errors; seed of the order of the images and of the controls."""

_WEIGHTS_AT_ONCE = 192 * 2**20
"""Bytes of the attention weights of one layer that a batch may have."""

_FIRST, _MOST = 2, 32
"""Images of the first batch, from which the memory of the others is known, and of any other."""


class Run:
    """The measures of all layers over some images.

    Attributes:
        count: Number of images.
        layers: The layers by name, in the order in which they compute; a further call of one says its number.
        passed_over: Layers in which no query, or no key, has a position.
    """

    def __init__(self, count: int, layers: Sequence[str] | None, kernel_size: int) -> None:
        """Starts without images; `layers` are the names of those to measure, None for all."""
        self.count, self.layers, self.passed_over = count, dict[str, LayerMeasure](), list[str]()
        self._names, self._kernel_size = layers, kernel_size

    def measure(
        self,
        model: nn.Module,
        image: Callable[[int], Tensor],
        after: Callable[[int], None] = lambda _: None,
        like: "Run | None" = None,
    ) -> None:
        """Measures the images, in a random order.

        `image` returns one by its number, `after` is called with the size of each batch, and `like` is a finished run,
        whose memory for an image is the same.
        """
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(SEED)).tolist()
        fitted = self.count - max(1, round(self.count / 5)) if self.count > 1 else self.count
        shape: tuple[int, ...] | None = None
        for start, stop in self._batches((fitted, self.count), self if like is None else like):
            batch = _batch([image(number) for number in order[start:stop]], shape)
            shape = tuple(batch.shape[1:])
            members = torch.arange(start, stop) * min(GROUPS, self.count) // self.count
            self._add(model, batch, members, held_out=start >= fitted)
            after(stop - start)

    def _batches(self, ends: Sequence[int], like: "Run") -> Iterator[tuple[int, int]]:
        """Cuts the images up to each end into batches, none of a single image if that can be helped."""
        done = 0
        for end in ends:
            while done < end:
                known = self.layers or like.layers
                largest = max((layer.bytes for layer in known.values()), default=_WEIGHTS_AT_ONCE)
                size = min(end - done, max(_FIRST, min(_MOST, _WEIGHTS_AT_ONCE // max(largest, 1))))
                size += end - done - size == 1
                yield done, done + size
                done += size

    def _add(self, model: nn.Module, batch: Tensor, members: Int64[Tensor, " images"], *, held_out: bool) -> None:
        """Runs the network on one batch and adds it to every layer."""
        calls: Counter[str] = Counter()

        def add(call: AttentionCall) -> None:
            calls[call.name] += 1
            name = call.name if calls[call.name] == 1 else f"{call.name} (call {calls[call.name]})"
            if self._names is None and not has_positions(call.layout):
                if (name or ITSELF) not in self.passed_over:
                    self.passed_over.append(name or ITSELF)
                return
            if name not in self.layers:
                self.layers[name] = LayerMeasure(call, self._kernel_size)
            self.layers[name].add(call, members, held_out=held_out)

        try:
            watch(model, batch, add, layers=self._names)
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
        if not self.layers:
            reasons = ", ".join(f"{name}: {NO_POSITION}" for name in self.passed_over) or "no layer ran"
            raise UnsupportedModelError(f"no attention of {type(model).__name__} can be measured: {reasons}")


def _batch(images: Sequence[Tensor], shape: tuple[int, ...] | None) -> Tensor:
    """Makes a batch; raises ArgumentError if images differ in size, also from `shape`, or are not finite."""
    shapes = {tuple(image.shape) for image in images} | ({shape} if shape else set())
    if len(shapes) > 1:
        raise ArgumentError(f"images must be of one size, but are of {' and '.join(map(str, sorted(shapes)))}")
    batch = torch.stack(list(images))
    if batch.is_floating_point() and not bool(torch.isfinite(batch).all()):
        raise ArgumentError("images must hold finite numbers, but some are infinite or nan")
    return batch


class LayerMeasure:
    """Sums of one layer over images, and what its calls say about it.

    Attributes:
        name: Dotted name.
        kind: Full name of its class.
        bytes: Memory of the weights of one image.
        pairs: Its pairs of queries and keys.
        sums: Sums over the images.
        kernels: Weights by displacement.
        fit: The best convolution; None if inputs or outputs do not lie on the grid of the queries.
        normalised: Whether the rows of all calls sum to 1.
        masked: Whether masks differed between images.
        error: Largest difference of weights × values to the module's own result.
        budget: What rounding explains there.
    """

    def __init__(self, call: AttentionCall, kernel_size: int) -> None:
        """Starts without images for a layer of which this is the first call, which `add` then adds."""
        self.name, self.kind, self.bytes = call.name, call.kind, call.weights[0].numel() * 4
        self.pairs = make_pairs(call.layout, call.name or ITSELF)
        self.sums, self.kernels = empty_sums(call, self.pairs, GROUPS), KernelFit()
        on_grid = all(x is not None and x.shape[1] == prod(call.layout.grid) for x in (call.inputs, call.outputs))
        self.fit = ConvolutionFit(call.layout.grid, kernel_size) if on_grid else None
        self.normalised, self.masked = True, False
        self.error, self.budget = call.error, call.budget

    def add(self, call: AttentionCall, members: Int64[Tensor, " images"], *, held_out: bool) -> None:
        """Adds a batch; `members` are the groups of its images, held out from the fit of the convolution or not."""
        name = call.name or ITSELF
        if not self.pairs.fits(call.layout):
            raise UnsupportedModelError(f"{name}: queries and keys lie elsewhere than for the images before")
        if call.weights.shape[2] != self.sums.squares.shape[1]:
            raise UnsupportedModelError(f"{name}: it has another number of heads than for the images before")
        if held_out:
            self.kernels.score(call, self.pairs, self.sums)
        added = sum_heads(call, self.pairs, members, len(self.sums.images))
        if not bool(torch.isfinite(added.squares).all()):
            raise ArgumentError(f"images must give finite attention, but weights of {name} are not finite")
        self.sums = self.sums.plus(added)
        if self.fit is not None:
            assert call.inputs is not None
            assert call.outputs is not None
            (self.fit.score if held_out else self.fit.fit)(call.inputs, call.outputs)
        if call.error - call.budget > self.error - self.budget:
            self.error, self.budget = call.error, call.budget
        self.normalised = self.normalised and call.normalised
        self.masked = self.masked or call.allowed is not None


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
