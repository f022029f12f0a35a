"""Attention by displacement as a normalised convolution: exact at borders, of stock operations alone.

A head without content gives key k of query q the weight g_h(k − q) / Σ_k' g_h(k' − q), with g_h = exp s_h. So the layer
is y(q) = b + Σ_h W_h (g_h ⋆ x)(q) / (g_h ⋆ 1)(q): a correlation whose kernel is the same for all channels, a division
by the correlation of ones, which does not depend on the image, and a 1 × 1 convolution.

See `docs/explanation/theory.md` §4.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import require
from convattn.functional import HeadMaps, pad_keys
from convattn.functional.convolution import convolve
from convattn.functional.quotient import kernel_means, kernels_of_scores
from convattn.functional.torch_modes import at_least_float32, fixed_sizes, without_autocast
from convattn.grid import Geometry, axis_pairs, whole_number
from convattn.layers.relative import (
    ConvolutionLike,
    arguments_of,
    lay_out_as,
    layer_sizes,
    require_images,
    with_gradient_laid_out,
)
from convattn.layers.values import make_values


@final
class NormalisedConv(ConvolutionLike):
    """A convolution of 1 to 3 axes that divides by the weights within the image: y = b + Σ_h W_h (g_h ⋆ x) / (g_h ⋆ 1).

    The kernel g_h = exp s_h, in a box of displacements, is the same for all channels of a head. If the score is a sum
    of one term per axis, axes are correlated one after the other. Pixels that the padding adds count as pixels of the
    image. `attention_to_conv(layer, borders="exact")` makes it from attention; it can be trained and saved like any
    layer. Correlations are in at least float32. Images may have any size.

    Source: Knutsson and Westin, "Normalized and differential convolution", CVPR 1993, with certainty 1 within the
    image; `docs/explanation/theory.md` §4.

    Attributes:
        scores: s, for a score that is a sum over axes one `(heads, taps)` per axis, else one `(heads, *taps)`.
        values: W_h, merged or factored.
        bias: b, (out_channels,), or None.
        box: Lowest and highest displacement of the kernel along each axis, in pixels.
        num_heads, groups: Number of heads, and of blocks of each W_h.

    Example:
        >>> conv = NormalisedConv(1, 1, num_heads=1, box=[(-1, 1)])  # a mean of three pixels, at the border of two
        >>> with torch.no_grad():
        ...     _ = conv.values.weight.fill_(1), conv.bias.fill_(0)
        >>> conv(torch.tensor([[3.0, 5.0, 10.0, 0.0]])).tolist()
        [[4.0, 6.0, 5.0, 5.0]]
    """

    def __init__(  # noqa: PLR0913 - the arguments of nn.ConvNd, plus those of heads
        self,
        in_channels: int,
        out_channels: int,
        num_heads: int,
        *,
        box: Sequence[tuple[int, int]],
        separable: bool = True,
        head_width: int | None = None,
        groups: int = 1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **window: Any,
    ) -> None:
        """Builds the layer; all taps of a kernel are equal at first.

        Args:
            in_channels: D_in ≥ 1.
            out_channels: D_out ≥ 1.
            num_heads: N_h ≥ 1.
            box: Lowest and highest displacement of the kernel along each of one to three axes; 0 lies between.
            separable: Whether the score is a sum of one term per axis.
            head_width: D_h ≥ 1 of narrow heads; None holds each W_h whole.
            groups: Number of blocks of each W_h.
            bias: Whether there is a bias b.
            device: Where to put the parameters.
            dtype: Dtype of W_h and b; the scores have at least float32.
            **window: `kernel_size`, `stride`, `padding`, `padding_mode`, `dilation` and `input_dilation`, as for
                attention: they set the output's size. Pixels that are padded count as pixels of the image.

        Raises:
            ArgumentError: An argument is out of range.
            UnknownNameError: The padding mode is unknown.
        """
        super().__init__()
        expected = "one to three pairs (lowest ≤ 0, highest ≥ 0) of integers"
        self.box = axis_pairs("box", box, expected)
        require(
            1 <= self.dims <= 3 and all(low <= 0 <= high for low, high in self.box),
            "box",
            expected,
            box,
        )
        sizes = layer_sizes(in_channels, out_channels, num_heads, groups)
        self._geometry = Geometry.parse(self.dims, **window)
        self.in_channels, self.out_channels, self.num_heads, self.groups = sizes
        self.head_width = None if head_width is None else whole_number("head_width", head_width)
        self.separable = separable
        self.values = make_values(num_heads, in_channels, out_channels, groups, head_width, None)
        self.bias = None
        if bias:
            bound = (num_heads * in_channels // groups) ** -0.5
            self.bias = nn.Parameter(torch.empty(out_channels).uniform_(-bound, bound))
        self.to(device=device, dtype=dtype)
        wide = at_least_float32(dtype or torch.get_default_dtype())
        shapes = [(taps,) for taps in self.taps] if separable else [self.taps]
        self.scores = nn.ParameterList(
            torch.zeros(num_heads, *shape, device=device, dtype=wide) for shape in shapes
        )

    @property
    def dims(self) -> int:
        """Number of spatial axes."""
        return len(self.box)

    @property
    def taps(self) -> tuple[int, ...]:
        """Taps of the kernel along each axis."""
        return tuple(high - low + 1 for low, high in self.box)

    def options(self) -> dict[str, Any]:
        """Returns the arguments that rebuild the layer, as JSON types; parameters are not included."""
        return {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "num_heads": self.num_heads,
            "box": self.box,
            "separable": self.separable,
            "head_width": self.head_width,
            "groups": self.groups,
            "bias": self.bias is not None,
            **asdict(self.geometry),
        }

    def extra_repr(self) -> str:
        """Returns the arguments for printing, without those at their defaults."""
        return arguments_of(self, box=None, separable=True)

    def _run(
        self, x: Float[Tensor, "batch channels *spatial"]
    ) -> Float[Tensor, "batch outputs *queries"]:
        """Applies the layer to a batch of images."""
        factors = self.values.factors()
        require_images(x, self.in_channels, self.dims, factors.value.dtype)
        axes = self.geometry.axes(fixed_sizes(x.shape[2:]))
        keys = pad_keys(with_gradient_laid_out(x), self.geometry)
        with without_autocast(x.device):
            kernels = kernels_of_scores(list(self.scores))
            lows = [low for low, _ in self.box]
            means = kernel_means(keys[:, None], kernels, lows, axes).to(x.dtype)
        means = means.unflatten(2, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        maps = rearrange(factors.whole(), "heads outputs channels -> outputs (heads channels)")
        ones = (1,) * self.dims
        none = (0,) * self.dims
        kernel = maps.view(*maps.shape, *ones)
        y = convolve(means.flatten(1, 2), kernel, self.bias, ones, none, ones, self.groups)
        return lay_out_as(x, y)

    def _factors(self) -> HeadMaps:
        return self.values.factors()
