"""Attention of content: queries and keys of the images, and how scores of displacements reach their kernel.

one-hot        a channel for each key along each axis: the fast kernels of a GPU
second degree  n + 1 channels of a `Quadratic`: on request, with a bound of what rounding moves
mask           scores of some queries at a time: a CPU, and scores that are no sum over axes
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import nan, prod
from typing import ClassVar, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings import AxisAdditiveEncoding, Quadratic
from convattn.functional.fused import Mask, fused_attention
from convattn.functional.path import CallSizes, Cost, Heads, Path
from convattn.functional.positions import (
    Channels,
    feature_channels,
    in_parts,
    one_hot,
    score_channels,
    second_degree,
    second_degree_error,
    second_degree_key,
    second_degree_query,
)
from convattn.functional.reference import (
    ContentTerms,
    HeadMaps,
    add_bias,
    pad_keys,
    position_features,
    queries_and_keys,
)
from convattn.functional.torch_modes import (
    FLASH_WIDTH,
    at_least_float32,
    can_be_read,
    is_accelerator,
    piece_bytes,
    without_autocast,
)
from convattn.grid import Axis

_WIDEST = 128
"""Most one-hot channels of a sequence: beyond, explicit weights take less time than wide queries."""


class Precision(NamedTuple):
    """Dtype of a kernel's queries and keys, and of how many parts numbers of positions are there."""

    dtype: torch.dtype
    query: int = 1  # parts of each channel of the queries
    key: int = 1  # parts of each channel of the keys

    @property
    def parts(self) -> int:
        """Channels in which one channel of positions is written."""
        return self.query * self.key


@dataclass(frozen=True, eq=False)
class PositionForm(ABC):
    """How scores of displacements reach a kernel.

    On a CPU the kernel takes queries and keys in at least float32. On a GPU it takes them in the dtype of products,
    because the fast kernels take 16 bits.
    """

    words: ClassVar[str]
    """What a plan says of it."""

    heads: Heads
    axes: tuple[Axis, ...]

    @property
    def content(self) -> ContentTerms:
        """The terms of the score that depend on the images."""
        assert self.heads.content is not None
        return self.heads.content

    @property
    def adds_score(self) -> bool:
        """Whether the encoding's own score is added to those of content; a gate keeps it apart."""
        return self.heads.share is None

    @property
    def is_empty(self) -> bool:
        """Whether no score depends on displacements."""
        return not (self.adds_score or self.content.uses_position)

    @property
    @abstractmethod
    def width(self) -> int:
        """Channels that are appended to queries and keys, in one part."""

    def bound(self, dtype: torch.dtype) -> float:  # noqa: ARG002
        """Returns the share of attention that rounding to a dtype moves where scores are differences."""
        return 0.0

    def precision(self, dtype: torch.dtype, device: torch.device) -> Precision:
        """Chooses the dtype of queries and keys from that of products, and the parts of positions."""
        wide = at_least_float32(dtype)
        if not is_accelerator(device) or dtype == wide:
            return Precision(wide)
        return self._narrow(dtype)

    def _narrow(self, dtype: torch.dtype) -> Precision:
        """Chooses the parts in a dtype of fewer than 32 bits."""
        return Precision(dtype)

    def channels(self, query: Float[Tensor, "images heads queries width"]) -> Channels | None:  # noqa: ARG002
        """Returns channels whose product is the score, for scaled queries without u; None where a mask adds it."""
        return None

    def mask(self, query: Float[Tensor, "images heads queries width"]) -> Mask | None:  # noqa: ARG002
        """Returns a mask of scores, in the dtype of the queries; None where channels add it."""
        return None

    def _scores(self, like: Tensor, *, by_axis: bool) -> list[Float[Tensor, "heads _"]]:
        """Returns the encoding's own scores, along each axis or of all displacements; none if a gate keeps them."""
        encoding = self.heads.encoding
        if not self.adds_score:
            return []
        if by_axis:
            assert isinstance(encoding, AxisAdditiveEncoding)
            return encoding.axis_tables(self.axes, like.dtype, like.device)
        return [encoding.table(self.axes, like.dtype, like.device).flatten(1)]

    def _features(self, like: Tensor, *, by_axis: bool) -> list[Float[Tensor, "_ _ width"]]:
        """Returns Ŵr_δ, along each axis or of all displacements; none without a content–position term."""
        encoding = self.heads.encoding
        return position_features(self.content, encoding, self.axes, like, by_axis=by_axis)


@final
class OneHot(PositionForm):
    """A channel for each key along each axis, in two parts if these leave queries narrow enough for the flash kernel.

    In one part scores of positions are rounded as other numbers of that dtype are.
    """

    words = "a channel for each key along each axis"

    @property
    def width(self) -> int:
        """As many channels as keys along all axes."""
        return sum(axis.keys for axis in self.axes)

    def _narrow(self, dtype: torch.dtype) -> Precision:
        in_one_part = self.content.key_width + self.width
        too_wide = in_one_part + self.width > FLASH_WIDTH >= in_one_part
        return Precision(dtype, 1 if too_wide else 2)

    def channels(self, query: Tensor) -> Channels:
        """Returns the scores of every key along each axis."""
        scores = self._scores(query, by_axis=True)
        features = self._features(query, by_axis=True)
        own = query.new_zeros(())
        if scores:
            own = score_channels(scores, self.axes)
        if features:
            own = own + feature_channels(query, features, self.axes)
        return Channels(own, one_hot(self.axes, query.dtype, query.device))


@final
class SecondDegree(PositionForm):
    """Quadratic scores in n + 1 channels, which are off by what the plan states as its bound.

    In 16 bits numbers are in three parts and their keys in two, as exact as float32 for up to 256 keys along an axis;
    beyond, the kernel computes in float32.
    """

    name: ClassVar[str] = "quadratic"
    words = "n + 1 channels"

    @classmethod
    def refuses(cls, heads: Heads) -> str | None:
        """Returns why heads cannot be computed in this way; None if they can."""
        other = None
        if not isinstance(heads.encoding, Quadratic):
            other = f"{type(heads.encoding).__name__} is not Quadratic"
        return heads.of_positions or other

    @property
    def width(self) -> int:
        """One channel more than axes."""
        return len(self.axes) + 1

    def bound(self, dtype: torch.dtype) -> float:
        """Bounds it for images of absolute value ≤ 1; nan where parameters cannot be read."""
        of_queries = self.content.query
        if not can_be_read(of_queries.weight):
            return nan
        largest = of_queries.weight.double().abs().sum(-1)
        if of_queries.bias is not None:
            largest = largest + of_queries.bias.double().abs()
        largest = largest.unflatten(0, (self.content.num_heads, -1))
        square, linear = second_degree(self._quadratic, torch.float64)
        square = self.adds_score * square.abs()
        linear = self.adds_score * linear.abs()
        if self.content.uses_position:
            seen = largest[..., None] * self.content.key_width**-0.5
            if self.content.position is not None:
                seen = self.content.position.double().abs().mT @ seen
            square = square + seen[:, 0, 0]
            linear = linear + seen[:, 1:, 0]
        return second_degree_error(square, linear, self.axes, dtype, self.content.key_width)

    @property
    def _quadratic(self) -> Quadratic:
        assert isinstance(self.heads.encoding, Quadratic)
        return self.heads.encoding

    def _narrow(self, dtype: torch.dtype) -> Precision:
        if max(axis.keys for axis in self.axes) <= 256:
            return Precision(dtype, 3, 2)
        return Precision(at_least_float32(dtype))

    def channels(self, query: Tensor) -> Channels:
        """Returns the terms of second degree, of first, and the keys' own."""
        self._quadratic.require_axes(self.axes)
        square = linear = query.new_zeros(())
        if self.adds_score:
            square, linear = second_degree(self._quadratic, query.dtype, query.device)
            square = square[:, None]
            linear = linear[:, None]
        if self.content.uses_position:
            seen = query
            if self.content.position is not None:
                seen = query @ self.content.position.to(query.dtype)
            square = square + seen[..., 0]
            linear = linear + seen[..., 1:]
        own = second_degree_query(square, linear, self.axes)
        return Channels(own, second_degree_key(self.axes, query))


@final
class Masked(PositionForm):
    """A mask of some queries at a time."""

    words = "a mask of some queries at a time"

    @property
    def width(self) -> int:
        """No channels."""
        return 0

    def mask(self, query: Tensor) -> Mask:
        """Returns a sum over axes where that is the score, except on a GPU."""
        additive = isinstance(self.heads.encoding, AxisAdditiveEncoding)
        by_axis = additive and not is_accelerator(query.device)
        scores = self._scores(query, by_axis=by_axis)
        features = self._features(query, by_axis=by_axis)
        bias = self.content.content_bias
        if bias is not None and features:
            # queries hold u, which only the keys of content are to see: u·Ŵr_δ is taken off again
            scaled = self.content.key_width**-0.5 * bias.to(query.dtype)
            own = scores or [0.0] * len(features)
            scores = []
            for score, table in zip(own, features, strict=True):
                scores.append(score - (table @ scaled[..., None]).squeeze(-1))
        return Mask(self.axes, scores, features)


def fastest_form(heads: Heads, axes: tuple[Axis, ...], device: torch.device) -> PositionForm:
    """Returns how scores of displacements reach the kernel in the least time."""
    one_hot = OneHot(heads, axes)
    # on a CPU the mask of some queries at a time takes 0.5 to 0.9 of the time of wider queries and keys
    on_cpu = not is_accelerator(device) and not torch.compiler.is_compiling()
    # the kernel's gradient leaves rounding where weights are exactly 0 and 1
    hard = heads.encoding.fixed_displacements is not None
    several = sum(axis.keys > 1 for axis in axes)
    wide = one_hot.width > _WIDEST and several < 2
    return Masked(heads, axes) if on_cpu or heads.joint or hard or wide else one_hot


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ContentPath(Path):
    """Content scores by a fused kernel; with a gate, beside the attention of position on a path of its own."""

    name: ClassVar[str] = "content"
    form: PositionForm  # how scores of displacements reach the kernel
    precision: Precision  # of the kernel's queries, keys and values
    position: Path | None  # attention of positions alone, if a gate mixes it in

    @classmethod
    def of(
        cls,
        sizes: CallSizes,
        form: PositionForm,
        reason: str,
        position: Path | None,
    ) -> "ContentPath":
        """Says in which precision, order and form it computes."""
        precision = form.precision(sizes.product_dtype, sizes.device)
        inner = min(sizes.inner, sizes.channels)
        reason += f"; scores of displacements as {form.words}"
        if precision.dtype.itemsize < 4:
            name = str(precision.dtype).removeprefix("torch.")
            reason += f" in {name}, in {precision.query} parts"
            width = form.content.key_width + precision.parts * form.width
            if max(width, inner) > FLASH_WIDTH:
                reason += f"; wider than the {FLASH_WIDTH} channels of torch's flash kernel"
        return cls(
            reason=reason,
            sizes=sizes,
            values_first=inner < sizes.channels,
            leak=0.0 if position is None else position.leak,
            form=form,
            precision=precision,
            position=position,
        )

    @classmethod
    def refuses(cls, heads: Heads) -> str | None:
        """Returns why heads cannot be computed in this way; None if they can."""
        return heads.of_positions

    def cost(self) -> Cost:
        """Counts queries, their channels, keys, values and means of all images, and what the kernel does."""
        sizes = self.sizes
        content = self.form.content
        width = content.key_width + self.precision.parts * self.form.width
        heads = sizes.batch * sizes.heads
        memory = heads * (3 * sizes.queries + 2 * sizes.keys)
        memory *= max(width, min(sizes.inner, sizes.channels))
        memory *= self.precision.dtype.itemsize
        scores = heads * sizes.queries * sizes.keys * sizes.softmax_dtype.itemsize
        # a tile of weights, and what is looked up for several
        memory += min(scores, piece_bytes(sizes.device))
        count = prod if self.form.heads.joint else sum
        features = content.uses_position * count(axis.span for axis in sizes.axes)
        flops = sizes.content_flops(content, width, features, values_first=self.values_first)
        if self.position is not None:
            position = self.position.cost()
            flops += position.flops
            memory += position.bytes
        return Cost(flops, memory)

    @property
    def bound(self) -> float:
        """Adds what rounding moves where scores of displacements are differences of larger numbers."""
        return self.leak + self.form.bound(self.sizes.softmax_dtype)

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Attends to content, and to positions if a gate keeps them apart."""
        sizes = self.sizes
        share = self.form.heads.share
        keys = pad_keys(x, sizes.geometry)
        value = maps.values(keys) if self.values_first else keys.flatten(2).mT[:, None]
        mixed = self._means(keys, value)
        if share is not None:
            mixed = mixed * (1 - share)[:, None, None]
        mixed = mixed.mT
        if mixed.dtype.itemsize > value.dtype.itemsize:  # under autocast, values are of its dtype
            mixed = mixed.to(value.dtype)
        y = maps.combine(mixed, values_first=self.values_first)
        grid = [len(axis.queries) for axis in sizes.axes]
        y = add_bias(y.unflatten(2, grid), bias)
        if self.position is None or share is None:
            return y
        return y + self.position.attend(x, maps.weighted(share), None)

    def _means(
        self,
        keys: Float[Tensor, "images channels *keys"],
        value: Float[Tensor, "images heads_or_one keys inner"],
    ) -> Float[Tensor, "images heads queries inner"]:
        """Takes the means of values, in the dtype of the kernel."""
        content = self.form.content
        narrow = self.precision.dtype
        query, key = queries_and_keys(content, keys, self.sizes.axes)
        with without_autocast(keys.device):
            wide = at_least_float32(narrow)
            scale = content.key_width**-0.5
            query = query.to(wide)
            mask = channels = None
            if not self.form.is_empty:
                mask = self.form.mask(query)
                channels = self.form.channels(scale * query)
            if content.content_bias is not None:
                query = query + content.content_bias.to(wide)[:, None]
            query = query.to(narrow)
            key = key.to(narrow)
            if channels is not None:
                channels = Channels(channels.query / scale, channels.key)
                if narrow != wide:
                    channels = in_parts(channels, narrow, self.precision.query, self.precision.key)
                query, key = channels.append(query, key)
            return fused_attention(
                query, key, value.to(narrow), mask, self.form.heads.dropout, scale=scale
            )
