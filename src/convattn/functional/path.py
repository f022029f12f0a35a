"""What all ways of computing have: the sizes of a call, how its heads weigh keys, and the base class of a path.

Costs follow from sizes alone: on a CPU operations, elsewhere the time of operations and of memory that is moved. A
multiplication and an addition count as two operations; bytes are working memory beyond input, output and parameters.
Heads are assumed to see many pixels: those that see few take fewer operations.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings import AxisAdditiveEncoding, Encoding
from convattn.functional.reference import ContentTerms, HeadMaps, add_bias, pad_keys
from convattn.functional.torch_modes import (
    KEPT_BYTES,
    at_least_float32,
    is_accelerator,
    piece_bytes,
)
from convattn.grid import Axis, Geometry

REQUESTED = "requested"
"""Reason of a path that was not chosen."""

_RATES = {torch.float64: 3e13, torch.float32: 5e13}
_FAST = 4e14
"""Operations a second in large products by dtype, and in 16 bits: estimates for a GPU of 2023, not measured."""

_BANDWIDTH = 2e12
"""Bytes a second that a GPU moves: an estimate for the same, not measured."""

_START = 5e-6
"""Seconds in which a GPU's kernel starts: an estimate, too."""

_MOST_WEIGHTS = 8
"""Pieces of memory (`piece_bytes`) that the weights of a layer may take on a GPU: gradients keep them."""

_LONG = 512
"""Number of keys from which a sequence is long: all weights then cost more than finding those that matter."""


class Cost(NamedTuple):
    """Operations and working memory."""

    flops: int  # floating-point operations
    bytes: int  # working memory, without the copies of images and of outputs that most paths make


@dataclass(frozen=True)
class CallSizes:
    """The sizes of one call of an attention layer."""

    batch: int  # 1 where it is a symbol of an export, which no comparison of costs may pin
    channels: int  # D_in
    outputs: int  # D_out
    heads: int  # N_h
    groups: int  # blocks of each W_h
    inner: int  # channels that each head mixes if values come first: D_h in all groups, or D_out
    factored: bool  # whether a second matrix follows those channels
    axes: tuple[Axis, ...]
    geometry: Geometry  # how images become keys
    dtype: torch.dtype  # of the images
    product_dtype: torch.dtype  # of their products: under autocast its own
    device: torch.device  # of the images

    @property
    def grid(self) -> tuple[int, ...]:
        """Queries along each axis."""
        return tuple(len(axis.queries) for axis in self.axes)

    @property
    def queries(self) -> int:
        """Number of queries."""
        return math.prod(self.grid)

    @property
    def keys(self) -> int:
        """Number of keys."""
        return math.prod([axis.keys for axis in self.axes])

    @property
    def itemsize(self) -> int:
        """Bytes of one number of the keys."""
        return self.dtype.itemsize

    @property
    def softmax_dtype(self) -> torch.dtype:
        """Dtype of scores and softmax: at least float32."""
        return at_least_float32(self.dtype)

    @property
    def line(self) -> int | None:
        """Number of the only axis with several queries or keys, 0 if there is none; None for images with more."""
        several = [
            number
            for number, axis in enumerate(self.axes)
            if axis.keys > 1 or len(axis.queries) > 1
        ]
        if len(several) > 1:
            return None
        return several[0] if several else 0

    @property
    def long_line(self) -> int | None:
        """Number of that axis if it has so many keys that the images are long sequences."""
        line = self.line
        return line if line is not None and self.axes[line].keys >= _LONG else None

    @property
    def fits(self) -> bool:
        """Whether the weights of all queries and keys may be in memory."""
        return self.weights(by_axis=False) * 4 <= _MOST_WEIGHTS * piece_bytes(self.device)

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights of all queries and keys may be kept on a CPU; a compiled graph keeps them anyway."""
        numbers = self.weights(by_axis=False) * self.softmax_dtype.itemsize
        on_cpu = not is_accelerator(self.device) and not torch.compiler.is_compiling()
        return not on_cpu or numbers <= KEPT_BYTES

    @property
    def reads_scores(self) -> bool:
        """Whether the values of scores may decide: elsewhere than on a CPU only where there is no other way."""
        return not is_accelerator(self.device) or (self.long_line is not None and not self.fits)

    @property
    def waits(self) -> str:
        """What follows from reading scores, in words: nothing on a CPU."""
        if not is_accelerator(self.device):
            return ""
        return "; its scores are read, so the program waits and no CUDA graph holds it"

    def seconds(self, kernels: int, flops: float, moved: float) -> float:
        """Estimates the time of kernels, their operations and the bytes that they move on a GPU."""
        rate = _RATES.get(self.product_dtype, _FAST)
        return kernels * _START + flops / rate + moved / _BANDWIDTH

    def weights(self, *, by_axis: bool) -> int:
        """Counts the attention weights of all heads."""
        if not by_axis:
            return self.heads * self.queries * self.keys
        return self.heads * sum(len(axis.queries) * axis.keys for axis in self.axes)

    def mixing(self, channels: int, *, by_axis: bool) -> int:
        """Counts the operations of weighted means, along one axis after the other or over all pairs at once."""
        each = 2 * self.batch * self.heads * channels
        if not by_axis:
            return each * self.queries * self.keys
        pairs = 0
        for number in range(len(self.axes)):
            mixed = math.prod(self.grid[: number + 1])
            pairs += mixed * math.prod([axis.keys for axis in self.axes[number:]])
        return each * pairs

    def products(self, pixels: int, inputs: int, outputs: int) -> int:
        """Counts the operations of one block-diagonal matrix for each head, at some pixels of each image."""
        return 2 * self.batch * pixels * (self.heads * inputs * outputs // self.groups)

    @property
    def maps(self) -> int:
        """Operations of all W_h at all queries."""
        return self.products(self.queries, self.channels, self.outputs)

    def explicit_flops(self, *, by_axis: bool, values_first: bool = False) -> int:
        """Counts the operations with explicit weights, along each axis or of all pairs of queries and keys.

        Weighted means of all channels come before W_h, or each head's own channels come before weighted means of those.
        """
        softmax = 5 * self.weights(by_axis=by_axis)
        if not values_first:
            return softmax + self.mixing(self.channels, by_axis=by_axis) + self.maps
        flops = softmax + self.products(self.keys, self.channels, self.inner)
        flops += self.mixing(self.inner, by_axis=by_axis)
        if self.factored:
            flops += self.products(self.queries, self.inner, self.outputs)
        return flops

    def content_flops(
        self, content: ContentTerms, width: int, displacements: int, *, values_first: bool
    ) -> int:
        """Counts the operations of content attention: scores of a width, and features of some displacements."""
        linear = self.channels * (self.queries + self.keys) + self.queries * displacements
        scores = content.key_width * linear + width * self.queries * self.keys
        attending = self.explicit_flops(by_axis=False, values_first=values_first)
        softmax = 5 * (self.batch - 1) * self.weights(by_axis=False)  # each image has weights
        return 2 * self.batch * self.heads * scores + attending + softmax


@dataclass(frozen=True)
class Heads:
    """How heads weigh keys in a call."""

    encoding: Encoding  # displacement → score per head
    content: ContentTerms | None = None  # None if scores do not depend on the images
    share: Float[Tensor, " heads"] | None = None  # share of position per head of a gated layer
    dropout: float = 0.0  # probability of dropping a weight

    @property
    def of_images(self) -> str | None:
        """What ways refuse that know positions alone; None if there is no such thing."""
        return None if self.content is None else "its scores depend on the images"

    @property
    def of_positions(self) -> str | None:
        """What ways refuse that compute content; None if there is no such thing."""
        return "its scores do not depend on the images" if self.content is None else None

    @property
    def dropped(self) -> str | None:
        """What ways refuse that have no single weights; None if there is no such thing."""
        return "dropout drops single weights" if self.dropout else None

    @property
    def joint(self) -> str | None:
        """What ways refuse that take one axis after the other; None if there is no such thing."""
        if isinstance(self.encoding, AxisAdditiveEncoding):
            return None
        return f"the scores of {type(self.encoding).__name__} are not a sum over axes"


@dataclass(frozen=True, eq=False, kw_only=True)
class Path(ABC):
    """A way to compute a layer on images of one size, with everything that does not depend on the images."""

    name: ClassVar[str]
    """By what it is asked for, and what a plan calls it."""
    by_axis: ClassVar[bool] = False
    """Whether it takes one axis after the other, of scores that are a sum over axes."""

    reason: str
    sizes: CallSizes  # the call that it was made for; the number of images may differ
    values_first: bool = False  # whether pixels are mixed after W_h, or after W_val, not before
    leak: float = 0.0  # largest share of attention that is left out

    @property
    def bound(self) -> float:
        """Largest share of attention that is at a wrong key, or left out."""
        return self.leak

    @classmethod
    def refuses(cls, heads: Heads) -> str | None:
        """Returns why heads cannot be computed in this way, completing "because …"; None if they can."""
        return heads.of_images or heads.dropped or (heads.joint if cls.by_axis else None)

    @abstractmethod
    def cost(self) -> Cost:
        """Returns what a call costs."""

    @abstractmethod
    def attend(
        self,
        x: Float[Tensor, "batch channels *spatial"],
        maps: HeadMaps,
        bias: Float[Tensor, " outputs"] | None,
    ) -> Float[Tensor, "batch outputs *queries"]:
        """Computes the layer.

        Args:
            x: Images.
            maps: W_h.
            bias: Added to the output, or None.

        Returns:
            Output channels at each query.
        """


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyPath(Path):
    """A path that computes from padded images."""

    def attend(self, x: Tensor, maps: HeadMaps, bias: Tensor | None) -> Tensor:
        """Pads the images, attends and adds the bias."""
        y = self.outputs(pad_keys(x, self.sizes.geometry), maps)
        return add_bias(y.view(*y.shape[:2], *self.sizes.grid), bias)

    @abstractmethod
    def outputs(
        self, keys: Float[Tensor, "batch channels *keys"], maps: HeadMaps
    ) -> Float[Tensor, "batch outputs *queries"]:
        """Computes the layer without its bias; queries may be flattened."""
