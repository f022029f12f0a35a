"""Relative self-attention on grids of any number of axes."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, TypeAlias, final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, fx, nn

from convattn.encodings import ENCODINGS, Encoding, ScoreFunction, create_encoding
from convattn.encodings.registry import require_encoding
from convattn.errors import ArgumentError, ShapeError, must_be, must_be_a, require, require_name
from convattn.functional import (
    CallSizes,
    HeadMaps,
    Path,
    WindowConvolution,
    pad_keys,
    position_share,
    window_convolution,
)
from convattn.functional.convolution import convolve
from convattn.functional.definition import weights_by_definition
from convattn.functional.path import Heads
from convattn.functional.plan import AUTO, WAYS, choose_path, require_way
from convattn.functional.shift import ShiftPath
from convattn.functional.torch_modes import (
    autocast_dtype,
    autocasts,
    can_be_read,
    fixed_sizes,
    is_accelerator,
    needs_own_operations,
)
from convattn.grid import Geometry, Padding, PerAxis, axis_lists, is_whole, whole_number
from convattn.layers.content_scores import Content, ContentScores
from convattn.layers.values import MergedValues, make_values
from convattn.record import Record

GateKind: TypeAlias = Literal["sigmoid", "tanh"]
"""How a number per head becomes a share of attention; see `position_share`."""

_GATE_STARTS = {"sigmoid": 1.0, "tanh": 0.0}
"""λ or g at the start, by the kind of the gate: shares of position of 0.73, and of exactly 1."""


@dataclass(frozen=True)
class Plan(Record):
    """How an attention layer computes its output for images of one shape, and what that costs."""

    path: str  # "separable", "dense", "fourier", "shift", "content" or "reference"
    order: str  # "weights" if pixels are mixed before they are multiplied with the heads' matrices, "values" if after
    reason: str  # Why this path
    # Floating-point operations of a forward pass with all keys, of which tiles leave out those without attention; a
    # multiplication and an addition count as two
    flops: int
    # Estimated working memory of a forward pass without gradients, beyond input, output and parameters. Above some MiB
    # it is mostly right within a factor of three; small calls can hold several MiB more, and those with content less
    bytes: int
    # Largest error beyond rounding for inputs of absolute value ≤ 1; nan if weights cannot be read
    bound: float
    shape: tuple[int, ...]  # Shape of the images, (batch, channels, *spatial)
    dtype: str  # Dtype of the images
    device: str  # Device of the images

    def summary(self) -> str:
        """Returns the plan in a few lines of plain text."""
        error = f"at most {self.bound:.3g} per unit of the input, beyond rounding"
        if math.isnan(self.bound):
            error = "unknown, because weights cannot be read"
        return "\n".join(
            [
                f"{self.path} path, {self.order} first: {self.reason}",
                f"  images          {self.shape}, {self.dtype} on {self.device}",
                f"  operations      {self.flops:,}",
                f"  working memory  {self.bytes:,} bytes",
                f"  error           {error}",
            ]
        )


class ConvolutionLike(nn.Module, ABC):
    """A layer that is called like a convolution and has its attributes: weight, window and steps.

    The weight exists if there is one head per tap of the window.

    Attributes:
        in_channels: Number of channels of the images.
    """

    in_channels: int
    _geometry: Geometry

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:  # noqa: A002 - as nn.ConvNd calls it
        """Applies the attention to images x, or to a single image, as `nn.ConvNd` does.

        Args:
            input: x, (batch, in_channels, *spatial) or (in_channels, *spatial), in the dtype of the weights, or any but
                float64 under autocast.

        Returns:
            (batch, out_channels, *out) or (out_channels, *out), the size that `nn.ConvNd` with the same arguments
            gives.

        Raises:
            ShapeError: The rank or the number of channels is wrong, the image is smaller than the window, or a frozen
                layer was not prepared for its size.
            ArgumentError: The dtype of x is not that of the weights, or `torch.fx` traces the layer alone.
        """
        if isinstance(input, fx.Proxy):
            return leaf_node(self, input)
        x = self.batch_of(input)
        return self._run(x) if x is input else self._run(x)[0]

    def register_parameter(self, name: str, param: Any) -> None:
        """Adds a parameter, as torch does when one is assigned; a weight becomes that of `values`.

        Raises:
            ArgumentError: It is a weight that `values` do not hold in this form, or one that computes the weight.
        """
        values = self._modules.get("values")
        if not name.startswith("weight") or values is None:
            super().register_parameter(name, param)
            return
        held = values._parameters.get("weight") if values.kernel_size else None
        if name != "weight" or param is None or held is None or held.shape != param.shape:
            raise ArgumentError(
                f"{type(self).__name__} has no parameter {name!r}: its weight is that of `layer.values`, so prune or"
                " normalise `layer.values`, as by prune.l1_unstructured(layer.values, 'weight', 0.5), and fuse before"
                " you convert"
            )
        values.register_parameter(name, param)

    def batch_of(self, input: Tensor) -> Tensor:  # noqa: A002 - as nn.ConvNd calls it
        """Returns the images of a call with these arguments; a single image becomes a batch of one."""
        alone = isinstance(input, Tensor) and input.ndim == len(self._geometry.kernel_size) + 1
        return input[None] if alone and len(input) == self.in_channels else input

    @abstractmethod
    def _run(self, x: Tensor) -> Tensor:
        """Applies the layer to a batch of images."""

    @property
    def geometry(self) -> Geometry:
        """Window, stride, padding and dilation, one entry per axis; fixed when the layer is made."""
        return self._geometry

    @abstractmethod
    def _factors(self) -> HeadMaps:
        """Returns W_h."""

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and the device of the weights."""
        # not a parameter: replicas of `DataParallel` and layers under FSDP have none
        return self._factors().value

    @property
    def weight(self) -> Tensor:
        """W_h as a convolution's weight, (outputs, inputs // groups, *kernel_size); it takes one head per tap."""
        values = getattr(self, "values", None)
        if isinstance(values, MergedValues) and values.weight is None:
            raise AttributeError("the weight of this layer is computed in each call")
        if isinstance(values, MergedValues) and values.kernel_size is not None:
            return values()  # as it is held, so that what is written into it is kept
        maps = self._factors().whole()
        taps = self.geometry.kernel_size
        if len(maps) != math.prod(taps):
            raise AttributeError(
                f"a layer of {len(maps)} heads and a window of {taps} has no attribute 'weight'"
            )
        return maps.movedim(0, -1).unflatten(-1, taps)

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """Taps of the window along each axis."""
        return self.geometry.kernel_size

    @property
    def stride(self) -> tuple[int, ...]:
        """Pixels from one query to the next, or, transposed, from one pixel of the dilated image to the next."""
        spread = self.geometry.input_dilation
        return spread if max(spread) > 1 else self.geometry.stride

    @property
    def dilation(self) -> tuple[int, ...]:
        """Pixels from one tap of the window to the next."""
        return self.geometry.dilation

    @property
    def padding(self) -> tuple[Any, ...]:
        """Pixels added on both sides along each axis; a pair for each axis if the layer is not a convolution of torch.

        It is none if it is transposed or the sides differ, nor with soft heads or content: a program that fuses a
        convolution with what follows would take these for one, and torch refuses pairs.
        """
        geometry = self.geometry
        before, after = zip(*geometry.padding, strict=True)
        if geometry.spreads or before != after or not self._is_convolution():
            return geometry.padding
        return before

    def _is_convolution(self) -> bool:
        """Tells whether the layer computes what a convolution with its weight computes."""
        return False

    @property
    def padding_mode(self) -> str:
        """What is outside the image, by its name in `nn.ConvNd`."""
        return self.geometry.padding_mode


class RelativeAttention(ConvolutionLike, ABC):
    """Multi-head self-attention on a grid, whose heads score displacements: y[q] = b + Σ_h Σ_k A_h[q, k] W_h x[k].

    A_h[q, k] is the softmax over all keys k of s_h(k − q), plus content scores if requested. Keys are the pixels of
    the padded image; queries are the positions at which a convolution with the same arguments centres its window.

    A gate mixes two distributions in place of adding two scores, of which the larger one would drown the other:
    A_h = (1 − s_h) softmax(content) + s_h softmax(position), with the same W_h. The share s comes from one
    number per head:

    - "sigmoid": s = σ(λ), λ = 1 at the start, a share of 0.73. s reaches 1 only by rounding, and then has no gradient.
    - "tanh": s = 1 − tanh(g), g = 0 at the start: no content, exactly, and still a gradient, so that the gate can open.
      A step that moves g below 0 subtracts content; the rows of A still sum to one. At g = 0 exactly queries and keys
      have the gradient zero; they learn from the first step on that moves g.

    While every g is exactly 0 and no gradient is asked for, content is not computed: the layer computes as it would
    without content, on the same path and to the same bits. With gradients, in compiled graphs, on a GPU, where to look
    at g is to wait, or once a gate is open, the weights of every query and key are computed, some queries at a time
    (`plan` says how much memory that takes).

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, §2; `docs/explanation/theory.md` §1. "sigmoid" is d'Ascoli et al. 2021
    (ConViT), eq. 6; theory §6.

    Attributes:
        dims: Number of spatial axes.
        encoding: Displacement → score per head.
        values: W_h, merged or factored.
        content: Content scores, or None.
        bias: b, (out_channels,), or None.
        gate, gate_kind: λ or g, (heads,), of a gated layer, and the function that makes a share of it; or None.
        dropout: Probability with which an attention weight is dropped in training.
    """

    dims: ClassVar[int]
    gate: nn.Parameter | None
    gate_kind: GateKind | None

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of nn.ConvNd, plus those of attention
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis | None = None,
        stride: PerAxis = 1,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        num_heads: int | None = None,
        encoding: str | Encoding | Callable[[Tensor], Tensor] = "quadratic",
        head_width: int | None = None,
        content: bool | Content = False,
        gate: GateKind | None = None,
        input_dilation: PerAxis = 1,
        dropout: float = 0.0,
        impl: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Builds the layer; the arguments before `num_heads` are those of `nn.ConvNd`, in its order.

        Args:
            in_channels: D_in ≥ 1.
            out_channels: D_out ≥ 1.
            kernel_size: Window that gives the output its size, as in `nn.ConvNd`; it does not limit what is
                attended to. None is one pixel.
            stride: Step of the queries, ≥ 1.
            padding: An integer, one per axis, a pair (before, after) per axis, "same" or "valid".
            dilation: Step of the window's taps, ≥ 1.
            groups: Number of blocks of each W_h, dividing in_channels and out_channels.
            bias: Whether there is a bias b.
            padding_mode: "zeros", "reflect", "replicate" or "circular"; padded pixels are keys as well.
            num_heads: N_h ≥ 1; None takes as many as a ready encoding has, or one head per tap of the window, with its
                centre there at the start.
            encoding: Name of an encoding, built with its defaults; an encoding for as many heads and axes; or a
                function of displacements, (*points, dims) in pixels → (heads, *points).
            head_width: D_h ≥ 1; None holds each W_h whole ("merged" heads, of full rank).
            content: Whether scores depend on the input, or which of their terms do; with a gate they always do, by
                content–content alone unless a `Content` says more.
            gate: How each head mixes a softmax of content with one of position: "sigmoid", which starts at a share of
                0.73 for position, or "tanh", which starts at exactly 1, without content; None adds the two scores.
            input_dilation: Step of the input pixels on the key grid, ≥ 1; above 1 as in a transposed convolution.
            dropout: Probability in [0, 1) with which an attention weight is dropped in training; without content one
                draw serves the whole batch.
            impl: "reference" (explicit scores, written to be read), "content" (a fused kernel), "quadratic" (the same
                with the scores of a `Quadratic` in n + 1 channels, which are off by what `plan` states as its bound),
                "dense" (explicit weights in large products), "fourier" (fast transforms), "separable" (one softmax per
                axis; axis-additive encodings), "shift" (a convolution; hard heads of axis-additive encodings; their
                gradient is zero) or "auto": what `plan` chooses.
            device: Where to put the parameters.
            dtype: Dtype of the parameters, the encoding's included.

        Raises:
            ArgumentError: An argument is out of range or does not fit the others.
            UnknownNameError: The name of the encoding, the gate, the padding mode or the path is unknown.
        """
        super().__init__()
        self._geometry = geometry = Geometry.parse(
            self.dims,
            kernel_size=1 if kernel_size is None else kernel_size,
            stride=stride,
            padding=padding,
            padding_mode=padding_mode,
            dilation=dilation,
            input_dilation=input_dilation,
        )
        if kernel_size is None and max(map(max, geometry.padding)) > 0:
            warnings.warn(
                f"padding={padding!r} without a kernel_size adds queries outside the image",
                stacklevel=2,
            )
        if num_heads is None:
            encoding = _heads_on_taps(encoding, geometry)
            num_heads = encoding.num_heads
        sizes = layer_sizes(in_channels, out_channels, num_heads, groups)
        is_share = isinstance(dropout, Real) and 0 <= dropout < 1
        require(is_share, "dropout", "a probability in [0, 1)", dropout)
        self.in_channels, self.out_channels, self.num_heads, self.groups = sizes
        self.head_width = None if head_width is None else whole_number("head_width", head_width)
        self.dropout = float(dropout)
        self.encoding = _fitting_encoding(encoding, num_heads, self.dims)
        self._window = None
        if math.prod(geometry.kernel_size) == num_heads:
            self._window = window_convolution(geometry)
        taps = None
        if head_width is None and _is_window(self.encoding, geometry):
            taps = geometry.kernel_size
        self.values = make_values(num_heads, in_channels, out_channels, groups, head_width, taps)
        self.content_terms = _content_terms(content, gate)
        self.content = None
        if self.content_terms is not None:
            features = self.encoding.feature_width
            self.content = ContentScores(self.content_terms, in_channels, num_heads, features)
        self.bias = None
        if bias:
            bound = (num_heads * in_channels // groups) ** -0.5
            self.bias = nn.Parameter(torch.empty(out_channels).uniform_(-bound, bound))
        self.gate_kind = gate
        self.gate = None
        if gate is not None:
            self.gate = nn.Parameter(torch.full((num_heads,), _GATE_STARTS[gate]))
        self.impl = impl
        self.to(device=device, dtype=dtype)

    def _run(self, x: Tensor) -> Tensor:
        """Applies the layer to a batch of images."""
        window = self.window_convolution()
        if window is not None:
            kernel = self.weight
            require_images(x, self.in_channels, self.dims, kernel.dtype)
            if min(x.shape[2:]) >= window.smallest:
                steps = self._geometry.stride
                spread = self._geometry.dilation
                return convolve(x, kernel, self.bias, steps, window.padding, spread, self.groups)
        maps = self.values.factors()
        require_images(x, self.in_channels, self.dims, maps.value.dtype)
        x = with_gradient_laid_out(x)
        y = self.path(maps, x.shape, x.dtype, x.device).attend(x, maps, self.bias)
        return lay_out_as(x, y)

    @property
    def impl(self) -> str:
        """The requested path, or "auto"; checked when it is assigned."""
        return self._impl

    @impl.setter
    def impl(self, path: str) -> None:
        require_way(path, Heads(self.encoding, self.content, dropout=self.dropout))
        self._impl = path

    def plan(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> Plan:
        """Returns how `forward` computes in the present mode, and what it costs.

        Args:
            shape: Shape of the images, (batch, in_channels, *spatial).
            dtype: Their dtype; None means the weights'.

        Returns:
            The path, on the device of the weights, with its reason, operations, working memory and error bound.

        Raises:
            ShapeError: `forward` does not take images of that shape.
            ArgumentError: The shape is not as many whole numbers as batches have axes, or the path requested cannot
                compute the layer as it is.

        Example:
            >>> from convattn.layers import RelativeAttention2d
            >>> RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic").plan((1, 3, 32, 32)).path
            'separable'
        """
        maps = self.values.factors()
        weight = maps.value
        sizes = _image_shape(shape, self.in_channels, self.dims)
        x = torch.empty(sizes, dtype=dtype or weight.dtype, device="meta")
        require_images(x, self.in_channels, self.dims, weight.dtype, weight.device)
        path = self.path(maps, x.shape, x.dtype, weight.device)
        cost = path.cost()
        outputs = path.sizes.batch * path.sizes.queries * self.out_channels * x.itemsize
        bound = 2 * path.bound
        if bound:
            whole = maps.whole().detach()
            bound *= math.nan if whole.is_meta else whole.double().abs().sum((0, 2)).max().item()
        return Plan(
            path=path.name,
            order="values" if path.values_first else "weights",
            reason=path.reason,
            flops=cost.flops,
            bytes=cost.bytes + x.nbytes + outputs,
            bound=bound,
            shape=sizes,
            dtype=str(x.dtype).removeprefix("torch."),
            device=str(weight.device),
        )

    def attention(
        self, spatial: Sequence[int] | Float[Tensor, "batch channels *spatial"]
    ) -> Float[Tensor, "*heads_queries_keys"]:
        """Returns the attention weights, without dropout.

        Args:
            spatial: Sizes of the image; with content scores the images themselves.

        Returns:
            (heads, *out, *keys), with content (batch, heads, *out, *keys), in at least float32; keys are the pixels
            of the padded image.

        Raises:
            ArgumentError: Sizes were given, but the weights depend on the images, or there is not one for each axis.
            ShapeError: The sizes are smaller than the window.
        """
        if isinstance(spatial, Tensor):
            require_images(spatial, self.in_channels, self.dims, self.like.dtype)
            axes = self.geometry.axes(spatial.shape[2:])
            keys = pad_keys(spatial, self.geometry)
            weights = weights_by_definition(self._heads(self.content), axes, keys)
        else:
            axes = self.geometry.axes(axis_lists("spatial", spatial, self.dims, least=1))
            if self.content is not None:
                raise ArgumentError(
                    must_be("spatial", "images, because the scores depend on content", spatial)
                )
            weights = weights_by_definition(self._heads(None), axes, self.like)
        sizes = [len(axis.queries) for axis in axes] + [axis.keys for axis in axes]
        return weights.view(*weights.shape[:-2], *sizes)

    def options(self) -> dict[str, Any]:
        """Returns the arguments that rebuild the layer, except encoding and content, as JSON types."""
        return {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "num_heads": self.num_heads,
            "head_width": self.head_width,
            **asdict(self.geometry),
            "groups": self.groups,
            "bias": self.bias is not None,
            "dropout": self.dropout,
            "impl": self.impl,
            "gate": self.gate_kind,
        }

    def extra_repr(self) -> str:
        """Returns the arguments for printing, without those at their defaults."""
        return arguments_of(self, dropout=0.0, impl="auto", gate=None)

    def needs_content(self) -> bool:
        """Tells whether content scores change the result in the present mode, or have a gradient."""
        if self.content is None:
            return False
        way = WAYS.get(self._impl)
        asked = way is not None and way.refuses(Heads(self.encoding)) is not None
        if self.gate is None or self.gate_kind != "tanh" or asked:
            return True
        if not can_be_read(self.gate):
            return True
        numbers = [self.gate, *self.content.parameters()]
        learns = torch.is_grad_enabled() and any(number.requires_grad for number in numbers)
        return learns or bool(self.gate.detach().any())

    def window_convolution(self) -> WindowConvolution | None:
        """Returns the convolution that equals the layer in the present mode; None unless heads are window taps."""
        window = self._window
        if window is None or self.encoding.fixed_displacements != window.displacements:
            return None
        if self._impl not in (AUTO, ShiftPath.name) or (self.dropout and self.training):
            return None
        return window if self._computed_content() is None else None

    def _is_convolution(self) -> bool:
        """Tells whether heads are fixed on the taps of the window, in order, and no content moves them."""
        return _is_window(self.encoding, self.geometry) and not self.needs_content()

    def _computed_content(self) -> ContentScores | None:
        """Returns the content scores of a call: None if they change nothing, where to find out is not to wait."""
        gate = self.gate
        waits = gate is not None and is_accelerator(gate.device)
        return self.content if waits or self.needs_content() else None

    def path(
        self,
        maps: HeadMaps,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Path:
        """Chooses how a call is computed in the present mode.

        Args:
            maps: W_h.
            shape: Shape of the images, which are not looked at.
            dtype: Their dtype.
            device: Their device.

        Returns:
            The path, with gradients to the encoding.
        """
        sizes = CallSizes(
            batch=shape[0] if isinstance(shape[0], int) else 1,
            channels=shape[1],
            outputs=(maps.value if maps.output is None else maps.output).shape[1],
            heads=len(maps.value),
            groups=maps.groups,
            inner=maps.value.shape[1],
            factored=maps.output is not None,
            axes=self.geometry.axes(fixed_sizes(shape[2:])),
            geometry=self.geometry,
            dtype=dtype,
            product_dtype=autocast_dtype(dtype, device),
            device=device,
        )
        dropout = self.dropout if self.training else 0.0
        return choose_path(sizes, self._heads(self._computed_content(), dropout), self._impl)

    def _heads(self, content: ContentScores | None, dropout: float = 0.0) -> Heads:
        """Says how the heads weigh keys; a gate has no part in it without content."""
        share = None
        if content is not None and self.gate is not None and self.gate_kind is not None:
            share = position_share(self.gate, self.gate_kind)
        return Heads(
            _fitting_encoding(self.encoding, self.num_heads, self.dims), content, share, dropout
        )

    def _factors(self) -> HeadMaps:
        return self.values.factors()

    def _load_from_state_dict(self, state_dict: dict[str, Any], *others: Any, **named: Any) -> None:
        values = self.values
        prefix = others[0]
        kernel: Any = state_dict.get(prefix + "weight")
        is_kernel = isinstance(kernel, Tensor) and kernel.shape[2:] == self.kernel_size
        if (
            is_kernel
            and isinstance(values, MergedValues)
            and _are_taps(self.encoding, self.geometry)
        ):
            maps = kernel.flatten(2).movedim(-1, 0)
            if (
                self.geometry.spreads and not len(kernel) % self.groups
            ):  # a transposed convolution's
                maps = rearrange(
                    maps.flip(0), "taps (groups i) o -> taps (groups o) i", groups=self.groups
                )
            if maps.shape == values.maps().shape:
                state_dict[prefix + "values.weight"] = values.held(maps).contiguous()
                del state_dict[prefix + "weight"]
        super()._load_from_state_dict(state_dict, *others, **named)


@final
class RelativeAttention1d(RelativeAttention):
    """Relative self-attention on sequences (batch, channels, positions), in the place of `nn.Conv1d`.

    Its output is y[q] = b + Σ_h Σ_k A_h[q, k] W_h x[k], where A_h[q, k] is the softmax over all positions k of a score
    of k − q.

    Its arguments are those of `RelativeAttention2d`, with one axis.

    Example:
        >>> import torch
        >>> RelativeAttention1d(3, 5, num_heads=2, encoding="sinusoidal")(torch.zeros(7, 3, 11)).shape
        torch.Size([7, 5, 11])
    """

    dims = 1


@final
class RelativeAttention2d(RelativeAttention):
    """Relative self-attention on images (batch, channels, rows, cols), in the place of `nn.Conv2d`.

    Its output is y[q] = b + Σ_h Σ_k A_h[q, k] W_h x[k], where A_h[q, k] is the softmax over all pixels k of a score of
    k − q.

    Args:
        in_channels: Channels of the input, D_in ≥ 1.
        out_channels: Channels of the output, D_out ≥ 1.
        kernel_size: Window that gives the output its size; it does not limit what is attended to. None is one pixel.
        stride: Step of the queries, ≥ 1.
        padding: An integer, one per axis, a pair (before, after) per axis, "same" or "valid".
        dilation: Step of the window's taps, ≥ 1.
        groups: Number of blocks of each W_h, dividing in_channels and out_channels.
        bias: Whether there is a bias b.
        padding_mode: "zeros", "reflect", "replicate" or "circular"; padded pixels are keys as well.
        num_heads: Number of heads, N_h ≥ 1; None places one on each tap of the window.
        encoding: Name of an encoding, as "quadratic", an `Encoding`, or a function of displacements,
            (…, 2) in pixels → (heads, …).
        head_width: D_h ≥ 1; None holds each W_h whole.
        content: Whether scores depend on the input, or, as a `Content`, which of their terms do; with a gate they do.
        gate: None adds scores of content and position. "sigmoid" and "tanh" mix a softmax of each by a learned share,
            which "tanh" starts without content.
        input_dilation: Step of the input's pixels among the keys, ≥ 1; above 1 as in a transposed convolution.
        dropout: Probability in [0, 1) with which an attention weight is dropped in training.
        impl: "auto", or what computes: "reference", "content", "quadratic", "dense", "fourier", "separable" or "shift".
        device: Where to put the parameters.
        dtype: Dtype of the parameters, the encoding's included.

    Example:
        >>> import torch
        >>> layer = RelativeAttention2d(3, 5, 3, stride=2, padding=1)  # nine heads, as nn.Conv2d has nine taps
        >>> layer(torch.zeros(7, 3, 11, 13)).shape
        torch.Size([7, 5, 6, 7])
    """

    dims = 2


@final
class RelativeAttention3d(RelativeAttention):
    """Relative self-attention on volumes (batch, channels, depth, rows, cols), in the place of `nn.Conv3d`.

    Its output is y[q] = b + Σ_h Σ_k A_h[q, k] W_h x[k], where A_h[q, k] is the softmax over all pixels k of a score of
    k − q.

    Its arguments are those of `RelativeAttention2d`, with three axes.

    Example:
        >>> import torch
        >>> RelativeAttention3d(2, 3, num_heads=2, encoding="distance")(torch.zeros(1, 2, 3, 5, 7)).shape
        torch.Size([1, 3, 3, 5, 7])
    """

    dims = 3


def leaf_node(module: nn.Module, *positional: Any, **named: Any) -> Any:
    """Calls a module in a graph of `torch.fx`, where it stays whole, as torch's own layers do."""
    every = (*positional, *named.values())
    tracer: Any = next(value.tracer for value in every if isinstance(value, fx.Proxy))
    name = tracer.path_of_module(module)
    if not name:
        raise ArgumentError("torch.fx cannot trace a layer alone: trace nn.Sequential(layer)")
    return tracer.create_proxy("call_module", name, positional, named)


def layer_sizes(in_channels: int, out_channels: int, num_heads: int, groups: int) -> list[int]:
    """Returns the sizes; ArgumentError if one is not positive, or groups do not divide channels."""
    channels = {"in_channels": in_channels, "out_channels": out_channels}
    named = {**channels, "num_heads": num_heads, "groups": groups}
    sizes = [whole_number(name, size) for name, size in named.items()]
    for name, value in channels.items():
        if value % groups:
            raise ArgumentError(must_be(name, f"divisible by groups={groups}", value))
    return sizes


def arguments_of(layer: Any, **plain: Any) -> str:
    """Returns the sizes of a layer, and the arguments that are not at their defaults, as written in a call."""
    sizes = [str(layer.in_channels), str(layer.out_channels), f"num_heads={layer.num_heads}"]
    options = {**layer.options(), **asdict(layer.geometry)}
    defaults = {"head_width": None, **asdict(Geometry.parse(layer.dims)), "groups": 1, "bias": True}
    others = []
    for name, value in {**defaults, **plain}.items():
        if options[name] != value:
            others.append(f"{name}={options[name]!r}")
    return ", ".join(sizes + others)


def _content_terms(content: bool | Content, gate: str | None) -> Content | None:
    """Returns the content terms of a layer; None if its scores do not depend on the input."""
    if gate is not None:
        require_name("gate", gate, _GATE_STARTS)
    if isinstance(content, Content):
        return content
    require(isinstance(content, bool), "content", "True, False or a Content", content)
    if gate is not None:
        return Content(position=False, content_bias=False)
    return Content() if content else None


def _fitting_encoding(
    encoding: str | Encoding | Callable[[Tensor], Tensor], num_heads: int, dims: int
) -> Encoding:
    """Builds an encoding from a name or a function; checks that a ready one fits the heads and axes."""
    if isinstance(encoding, str):
        return create_encoding(encoding, num_heads, dims)
    if not isinstance(encoding, Encoding):
        if isinstance(encoding, type) or not callable(encoding):
            expected = "the name of an encoding, an Encoding, or a function of displacements"
            raise ArgumentError(must_be("encoding", expected, encoding))
        return ScoreFunction(num_heads, dims, function=encoding)
    if (encoding.num_heads, encoding.dims) != (num_heads, dims):
        raise ArgumentError(must_be("encoding", f"for {num_heads} heads and {dims} axes", encoding))
    return encoding


def _heads_on_taps(
    encoding: str | Encoding | Callable[[Tensor], Tensor], geometry: Geometry
) -> Encoding:
    """Builds an encoding with one head on each tap of the window; a ready one has its own heads."""
    if isinstance(encoding, Encoding):
        return encoding
    if isinstance(encoding, str):
        require_encoding(encoding)
        argument = ENCODINGS[encoding].centre_argument
        if argument is not None:
            taps = geometry.taps()
            return create_encoding(encoding, len(taps), len(taps[0]), **{argument: taps})
    names = ", ".join(name for name, kind in ENCODINGS.items() if kind.centre_argument)
    raise ArgumentError(
        must_be("num_heads", f"given unless the encoding has centres ({names})", None)
    )


def _are_taps(encoding: Encoding, geometry: Geometry) -> bool:
    """Tells whether each head looks at the tap of its number, row by row: only then is a kernel's matrix its own."""
    centres = encoding.head_centres
    if encoding.fixed_displacements is not None or centres is None:
        return _is_window(encoding, geometry)
    if centres.is_meta or len(centres) != math.prod(geometry.kernel_size):
        return False
    return centres.round().tolist() == [list(map(float, tap)) for tap in geometry.taps()]


def _is_window(encoding: Encoding, geometry: Geometry) -> bool:
    """Tells whether the heads are fixed, and are the taps of the window, one for each, row by row."""
    displacements = encoding.fixed_displacements
    # counted first: the window that a damaged file names may have more taps than there is memory
    if displacements is None or len(displacements) != math.prod(geometry.kernel_size):
        return False
    return displacements == geometry.taps()


_AXES = {1: "positions", 2: "rows, cols", 3: "depth, rows, cols"}


def _image_shape(shape: Sequence[int], channels: int, dims: int) -> tuple[int, ...]:
    """Returns the shape of images as a tuple; raises ArgumentError if it is not (batch, channels, *spatial)."""
    valid = (
        isinstance(shape, Sequence)
        and len(shape) == dims + 2
        and all(is_whole(size) and size >= 0 for size in shape)
    )
    require(valid, "shape", f"{dims + 2} whole numbers (batch, {channels}, {_AXES[dims]})", shape)
    return tuple(map(int, shape))


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def lay_out_as(x: Tensor, y: Tensor) -> Tensor:
    """Lays an output out in memory as `nn.ConvNd` does: channels last if they are in the images, and no view."""
    return _laid_out(y, _layout_of(x))


def _layout_of(x: Tensor) -> torch.memory_format:
    return _CHANNELS_LAST[x.ndim] if _has_channels_last(x) else torch.contiguous_format


def _laid_out(y: Tensor, layout: torch.memory_format) -> Tensor:
    if layout is not torch.contiguous_format and needs_own_operations(y):
        return y  # of a batch that `vmap` maps over torch knows no layout
    y = y.contiguous(memory_format=layout)
    # of a view that is changed in place, FSDP loses the hook that brings the weights back
    is_view = y.requires_grad and not torch.compiler.is_compiling() and y._is_view()
    # along an axis of one pixel or channel any step will do, and others read there which layout was meant
    return y.clone(memory_format=layout) if is_view or 1 in y.shape[1:] else y


def with_gradient_laid_out(x: Tensor) -> Tensor:
    """Returns the same images, whose gradient will lie in memory as they do: what made them reads it faster so."""
    in_torch = torch.compiler.is_compiling() or needs_own_operations(x)
    if x.requires_grad and torch.is_grad_enabled() and not in_torch:
        own, layout = (
            x.view_as(x),
            _layout_of(x),
        )  # not the images, which a hook would keep as long as the graph
        # torch calls it with None where no gradient arrives
        own.register_hook(
            lambda gradient: None if gradient is None else _laid_out(gradient, layout)
        )
        return own
    return x


def _has_channels_last(x: Tensor) -> bool:
    """Tells whether torch takes channels of images for last: by strides, which parts of images have, too."""
    channels, *spatial = zip(fixed_sizes(x.shape[1:]), x.stride()[1:], strict=True)
    least = 0
    for size, step in (channels, *reversed(spatial)):
        if step < least:
            return False
        least = step * size
    return x.stride(1) not in (0, least) and x.stride(0) >= least and x.ndim in _CHANNELS_LAST


def require_images(
    x: Tensor, channels: int, dims: int, dtype: torch.dtype, device: torch.device | None = None
) -> None:
    """Checks images: ShapeError for a wrong shape; ArgumentError for no tensor or another dtype than the weights."""
    if not isinstance(x, Tensor):
        raise ArgumentError(must_be_a("x", "a tensor", x))
    if x.is_nested:
        raise ArgumentError(must_be("x", "images of one size; call the layer on each", "nested"))
    if x.ndim != dims + 2 or x.shape[1] != channels:
        expected = f"of shape (batch, {channels}, {_AXES[dims]})"
        message = must_be("x", expected, tuple(x.shape))
        place = x.ndim - dims - 1
        if place in (0, 1) and x.shape[-1] == channels:
            message += f": if channels are last, pass x.movedim(-1, {place})"
        raise ShapeError(message)
    if x.layout is not torch.strided:
        raise ArgumentError(must_be("x", "dense, as x.to_dense() makes it", x.layout))
    if x.dtype is not dtype:
        # Under autocast, images and weights may differ in dtype, unless one is float64, which it leaves as it is.
        autocast = autocasts(x.device if device is None else device) and torch.float64 not in (
            x.dtype,
            dtype,
        )
        if not (autocast and x.is_floating_point()):
            raise ArgumentError(must_be("x", f"of the weights' dtype {dtype}", x.dtype))
