"""The ways to compute a layer without content on images of one size, one class for each.

`convattn.layers.plan` makes a path from scores, before any image is known. A path knows its cost and its error, and
computes the layer's output, including the bias::

    encoding  →  scores  →  path  →  path.attend(x, maps, bias)

    ShiftPath      every head looks at one pixel          a convolution
    WeightsPath    softmax along each axis, or of all     products (functional/separable)
                   pairs of queries and keys
    SharedPath     the same for heads that share their    fewer products (functional/shared)
                   weights along an axis
    BandPath       long sequences                         a convolution, and the ends (functional/bands)
    FourierPath    any score of a displacement            fast transforms (functional/fourier)
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.functional.autocast import autocasts
from convattn.functional.bands import Bands, band_attention
from convattn.functional.cost import Cost, Work
from convattn.functional.derivatives import needs_own_operations
from convattn.functional.fourier import Filters, fourier_attention
from convattn.functional.reference import HeadMaps, pad_keys
from convattn.functional.separable import separable_attention, values_first_attention
from convattn.functional.shared import GridAttention
from convattn.functional.shift import Shifts, shift_attention


@dataclass(frozen=True, eq=False, kw_only=True)
class Path(ABC):
    """A way to compute a layer on images of one size."""

    name: str  # that of a layer's `impl`
    reason: str
    work: Work  # the call that it was made for; the number of images may differ
    order: str = "weights"  # what comes first, "weights" or "values"
    leak: float = 0.0  # largest share of attention that is left out
    heads_axis: ClassVar[int] = 0  # place of the heads among the axes of matrices that `attend` need not copy

    @abstractmethod
    def cost(self) -> Cost:
        """Returns what a call costs."""

    @abstractmethod
    def attend(
        self, x: Float[Tensor, "batch channels *spatial"], maps: HeadMaps, bias: Float[Tensor, " outputs"] | None
    ) -> Float[Tensor, "batch outputs *queries"]:
        """Computes the layer."""

    def laid_out(self, maps: Float[Tensor, "heads outputs channels"]) -> Float[Tensor, "heads outputs channels"]:
        """Orders whole matrices in memory so that `attend` need not copy them."""
        axis = self.heads_axis
        return maps.movedim(0, axis).contiguous().movedim(axis, 0) if axis else maps

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that the path holds."""
        return _nbytes(self)

    def _finished(self, y: Tensor, bias: Tensor | None) -> Tensor:
        """Gives the output its shape and adds the bias."""
        y = y.view(*y.shape[:2], *self.work.queries)
        return y if bias is None else y + bias.to(y.dtype).view(-1, *(1,) * len(self.work.axes))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ShiftPath(Path):
    """Hard heads, computed as a convolution."""

    heads_axis = -1
    shifts: Shifts
    unmoved: tuple[Tensor, ...] = ()  # scores of hard heads that learn: their gradient is zero, not missing

    def cost(self) -> Cost:
        """Returns what a call costs."""
        return self.work.shift(math.prod(self.shifts.window[1]))

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Computes the layer."""
        whole = maps.whole()
        if self.unmoved and not needs_own_operations(whole):
            whole = _NoGradient.apply(whole, *self.unmoved)
        return shift_attention(self.shifts, self.work.axes, self.work.geometry, x, whole, maps.groups, bias)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class WeightsPath(Path):
    """Explicit weights along each axis ("separable"), or of all pairs of queries and keys ("dense")."""

    weights: tuple[Tensor, ...]  # (heads, queries, keys) for each axis, or once for all pairs, in at least float32
    dropout: float = 0.0  # probability of dropping a weight

    def cost(self) -> Cost:
        """Returns what a call costs."""
        first = self.work.values_first if self.order == "values" else self.work.weights_first
        return first(by_axis=self.name == "separable")

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Computes the layer."""
        return self.attend_keys(pad_keys(x, self.work.geometry), maps, bias)

    def attend_keys(self, keys: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Computes the layer from key images."""
        weights = self.weights
        if self.dropout:
            weights = [nn.functional.dropout(weight, self.dropout) for weight in weights]
        if self.name == "dense":
            keys = keys.flatten(2)
        if self.order == "values":
            same = [weight.to(keys.dtype) for weight in weights]
            y = values_first_attention(same, keys, maps.value, maps.output, maps.groups)
        else:
            y = separable_attention(weights, keys, maps.whole(), maps.groups)
        return self._finished(y, bias)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class SharedPath(Path):
    """Heads that share their weights along the axes; with gradients, each head is computed by itself."""

    heads_axis = 1
    shared: GridAttention

    def cost(self) -> Cost:
        """Returns what a call costs without sharing."""
        return (self.work.values_first if self.order == "values" else self.work.weights_first)(by_axis=True)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Computes the layer."""
        whole = maps.whole()
        given = [x, whole] if bias is None else [x, whole, bias]
        learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        if not (learns or autocasts(x.device) or needs_own_operations(*given)):
            return self.shared(x, whole, maps.groups, bias)
        grid, order = self.shared.grid, self.work.order(by_axis=True)
        weights = tuple(grid.by_head(len(self.work.axes)))
        apart = WeightsPath(name=self.name, reason=self.reason, work=self.work, order=order, weights=weights)
        return apart.attend_keys(x if grid.geometry is None else pad_keys(x, self.work.geometry), maps, bias)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class BandPath(Path):
    """Long sequences, also as images of one row or column, without the keys that do not matter."""

    bands: Bands

    def cost(self) -> Cost:
        """Returns what a call costs."""
        return self.work.bands(self.bands)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Computes the layer."""
        assert self.work.line is not None
        keys, axis = pad_keys(x, self.work.geometry).flatten(2), self.work.axes[self.work.line]
        return self._finished(band_attention(self.bands, axis, keys, maps.whole(), maps.groups), bias)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class FourierPath(Path):
    """Fast Fourier transforms of the images and of the heads' filters."""

    filters: Filters

    def cost(self) -> Cost:
        """Returns what a call costs."""
        return self.work.fourier()

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Computes the layer."""
        keys = pad_keys(x, self.work.geometry)
        return self._finished(fourier_attention(self.filters, self.work.axes, keys, maps.whole(), maps.groups), bias)


def _nbytes(value: object) -> int:
    """Sums the bytes of all tensors in dataclasses, tuples and lists."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, tuple | list):
        return sum(map(_nbytes, value))
    if is_dataclass(value):
        return sum(_nbytes(getattr(value, field.name)) for field in fields(value))
    return 0


class _NoGradient(torch.autograd.Function):
    """Passes on the matrices of hard heads, and gives the heads' scores a gradient of zero.

    The output cannot be passed instead: later code may change it in place, which torch forbids for the result of a
    custom function.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, *scores: Tensor) -> Tensor:
        ctx.save_for_backward(*scores)
        return maps.view_as(maps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return gradient, *(torch.zeros_like(table) for table in ctx.saved_tensors)
