"""A layer for inference only: everything that does not depend on the images is computed beforehand."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from convattn.errors import ArgumentError, ShapeError, must_be, require
from convattn.functional import HeadMaps, Path
from convattn.functional.torch_modes import fixed_sizes
from convattn.layers.relative import (
    ConvolutionLike,
    RelativeAttention,
    lay_out_as,
    require_images,
    with_gradient_laid_out,
)
from convattn.structure import copied_module


class _Prepared(NamedTuple):
    """A path with the matrices and the bias that it is called with."""

    path: Path
    maps: HeadMaps
    bias: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of these numbers and of the path."""
        numbers = tree_leaves([*vars(self.path).values(), self.maps, self.bias])
        return sum(number.nbytes for number in numbers if isinstance(number, Tensor))


@final
class FrozenAttention(ConvolutionLike):
    """A frozen copy of a layer without content, for images of given sizes.

    It computes what the layer did in evaluation, by the same path ("dense" in place of "reference"), but with softmax,
    filters or kernel prepared. It has no parameters, does not train, and cannot be moved to another device or dtype:
    freeze the layer again. Gradients with respect to the images are correct.

    Attributes:
        in_channels, out_channels, num_heads: Sizes of the layer.
    """

    def __init__(self, layer: RelativeAttention, sizes: Iterable[tuple[int, ...]]) -> None:
        """Freezes a layer.

        Args:
            layer: The layer; it is not changed, and nothing is shared with it.
            sizes: Sizes of the images, per axis.

        Raises:
            ArgumentError: The layer's scores depend on content, or no size is given.
            ShapeError: A size is smaller than the window.
        """
        super().__init__()
        require(isinstance(layer, RelativeAttention), "layer", "a RelativeAttention", layer)
        every = list(sizes)
        for size in every:
            require(isinstance(size, Sequence), "sizes", "sizes per axis, as [(32, 32)]", every)
        with torch.no_grad():
            content = layer.needs_content()
        if content:
            raise ArgumentError(
                must_be("layer", "one whose scores do not depend on content", type(layer).__name__)
            )
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        self.num_heads = layer.num_heads
        self._geometry = layer.geometry
        self.training = False
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # in this order: the first turns gradients on
            self._prepared = {size: _prepare(layer, size) for size in map(tuple, every)}
        if not self._prepared:
            raise ArgumentError(must_be("sizes", "at least one size of images", []))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that it holds."""
        return sum(prepared.nbytes for prepared in self._prepared.values())

    def _run(self, x: Tensor) -> Tensor:
        """Applies the layer to a batch of images."""
        require_images(x, self.in_channels, len(self.geometry.kernel_size), self.like.dtype)
        size = fixed_sizes(x.shape[2:])
        prepared = self._prepared.get(size)
        if prepared is None:
            made = " or ".join(map(_times, self._prepared))
            raise ShapeError(
                f"x must have a size for which this layer was frozen, {made}, but has"
                f" {_times(size)}: freeze the layer again with such images"
            )
        x = with_gradient_laid_out(x)
        return lay_out_as(x, prepared.path.attend(x, prepared.maps, prepared.bias))

    def train(self, mode: bool = True) -> "FrozenAttention":
        """Stays in evaluation mode; raises ArgumentError if `mode` is true."""
        if mode:
            raise ArgumentError(
                "a frozen layer cannot be trained: train the network that it was frozen from"
            )
        return self

    def extra_repr(self) -> str:
        """Returns sizes and paths, for printing."""
        paths = {_times(size): prepared.path.name for size, prepared in self._prepared.items()}
        return f"{self.in_channels}, {self.out_channels}, num_heads={self.num_heads}, paths={paths}"

    def _factors(self) -> HeadMaps:
        return next(iter(self._prepared.values())).maps

    def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:  # noqa: ARG002 - as nn.Module has it
        raise ArgumentError(
            "a frozen layer cannot be moved or cast: do so with the network, then freeze it again"
        )


def _times(size: tuple[int, ...]) -> str:
    """Writes a size as people do."""
    return " x ".join(map(str, size))


def _prepare(layer: RelativeAttention, size: tuple[int, ...]) -> _Prepared:
    """Prepares a copy of a layer in evaluation mode for images of one size."""
    still = copied_module(layer).eval()
    still.content = still.gate = None  # they change nothing, and on a GPU a call does not look
    if still.impl == "reference":  # which computes scores in each call
        still.impl = "dense"
    maps = still.values.factors()
    shape = (1, layer.in_channels, *size)
    path = still.path(maps, shape, maps.value.dtype, maps.value.device)
    value = maps.value.detach().clone()
    output = None if maps.output is None else maps.output.detach().clone()
    bias = None if still.bias is None else still.bias.detach().clone()
    return _Prepared(path, HeadMaps(value, output, maps.groups), bias)
