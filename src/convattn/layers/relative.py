"""Relative self-attention on grids of any number of axes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings import Encoding, Shift
from convattn.errors import ArgumentError, must_be
from convattn.functional import (
    WindowConvolution,
    attend,
    attention_weights,
    displacement_scores,
    gated_weights,
    pad_keys,
    position_share,
    window_convolution,
)
from convattn.functional.autocast import without_autocast
from convattn.functional.derivatives import can_be_read
from convattn.grid import Axis, Geometry, Padding, PerAxis, axis_lists
from convattn.layers.checks import fitting_encoding, fitting_path, is_window, require_images, require_sizes
from convattn.layers.content import Content, ContentScores
from convattn.layers.plan import Plan, describe_layer, path_of
from convattn.layers.values import make_values


class HasKernel(nn.Module, ABC):
    """A layer that is called like a convolution, and has what other code reads from one: weight, window and steps.

    The weight needs one head per tap of the window.

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
            ShapeError: Wrong rank or number of channels, an image smaller than the window, or, frozen, of a size for
                which nothing was prepared.
            ArgumentError: The dtype of x is not that of the weights.
            DeviceError: FlexAttention cannot run here: gradients on the CPU, or a device that is neither CUDA nor CPU.
        """
        x = self.batch_of(input)
        return self._run(x) if x is input else self._run(x)[0]

    def batch_of(self, input: Tensor) -> Tensor:  # noqa: A002 - as nn.ConvNd calls it
        """Returns the images of a call, which is given the same arguments: a single image as a batch of one."""
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
    def _maps(self) -> Tensor:
        """Returns W_h, (heads, outputs, channels // groups)."""

    @property
    def weight(self) -> Tensor:
        """W_h as a convolution's weight, (outputs, inputs // groups, *kernel_size); it takes one head per tap."""
        maps, taps = self._maps(), self.geometry.kernel_size
        if len(maps) != math.prod(taps):
            raise AttributeError(f"a layer of {len(maps)} heads and a window of {taps} has no attribute 'weight'")
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


def explicit_weights(
    encoding: Encoding,
    content: ContentScores | None,
    share: Float[Tensor, " heads"] | None,
    keys: Float[Tensor, "images channels *keys"] | None,
    axes: Sequence[Axis],
    like: Tensor,
) -> Float[Tensor, "*images heads queries keys"]:
    """Computes the weights of every query and key, in at least float32; with content one set for each image."""
    # Without key images, content is left out and the dtype of `like` counts; its device always does.
    dtype = torch.promote_types(like.dtype if keys is None else keys.dtype, torch.float32)
    with without_autocast(like.device):
        position = displacement_scores(encoding.table(axes, dtype, like.device), axes)
    if content is None or keys is None:
        return attention_weights(position)
    scores = content(keys, axes, encoding)
    if share is None:
        return attention_weights(position + scores)
    return gated_weights(attention_weights(scores), attention_weights(position), share)


def layer_options(layer: "RelativeAttention") -> dict[str, Any]:
    """Returns the arguments that rebuild a layer, except encoding and content, as JSON types."""
    geometry = layer.geometry
    return {
        "in_channels": layer.in_channels,
        "out_channels": layer.out_channels,
        "num_heads": layer.num_heads,
        "head_width": layer.head_width,
        "kernel_size": list(geometry.kernel_size),
        "stride": list(geometry.stride),
        "padding": [list(pair) for pair in geometry.padding],
        "padding_mode": geometry.padding_mode,
        "dilation": list(geometry.dilation),
        "input_dilation": list(geometry.input_dilation),
        "groups": layer.groups,
        "bias": layer.bias is not None,
        "dropout": layer.dropout,
        "impl": layer.impl,
        "kernel_values": layer.values.kernel_size is not None,
        **({} if layer.gate_kind is None else {"gate": layer.gate_kind}),
    }


def printed_options(layer: "RelativeAttention") -> str:
    """Returns a layer's arguments on one line, without those at their defaults."""
    plain = {"head_width": None, "groups": 1, "bias": True, "dropout": 0.0, "impl": "auto", "gate": "sigmoid"}
    plain |= vars(Geometry.parse(layer.dims))
    given = {**layer_options(layer), **vars(layer.geometry)}
    shown = {name: value for name, value in given.items() if name in plain and value != plain[name]}
    sizes = [str(layer.in_channels), str(layer.out_channels), f"num_heads={layer.num_heads}"]
    return ", ".join(sizes + [f"{name}={value!r}" for name, value in shown.items()])


GateKind: TypeAlias = Literal["sigmoid", "tanh"]
"""How a number per head becomes a share of attention; see `position_share`."""

_CONVOLUTION_PATHS = ("auto", "shift")
"""Paths on which hard heads run as a convolution."""


class RelativeAttention(HasKernel, ABC):
    """Multi-head self-attention on a grid, whose heads score displacements: y[q] = b + Σ_h Σ_k A_h[q, k] W_h x[k].

    A_h[q, k] is the softmax over all keys k of s_h(k − q), plus content scores if requested. Keys are the pixels of
    the padded image; queries are the positions at which a convolution with the same arguments centres its window.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, §2; `docs/theory.md` §1.

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

    def __init__(  # noqa: PLR0913 - the arguments of nn.ConvNd, plus those of attention
        self,
        in_channels: int,
        out_channels: int,
        num_heads: int,
        encoding: str | Encoding | Callable[[Tensor], Tensor],
        *,
        head_width: int | None = None,
        content: bool | Content = False,
        kernel_size: PerAxis = 1,
        stride: PerAxis = 1,
        padding: Padding = 0,
        padding_mode: str = "zeros",
        dilation: PerAxis = 1,
        input_dilation: PerAxis = 1,
        groups: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        impl: str = "auto",
        kernel_values: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Builds the layer.

        Args:
            in_channels: D_in ≥ 1.
            out_channels: D_out ≥ 1.
            num_heads: N_h ≥ 1.
            encoding: Name of an encoding, built with its defaults; an encoding for as many heads and axes; or a
                function of displacements, (*points, dims) in pixels → (heads, *points).
            head_width: D_h ≥ 1; None holds each W_h whole ("merged" heads, of full rank).
            content: Whether scores depend on the input, or which of their terms do.
            kernel_size: Window that gives the output its size, as in `nn.ConvNd`; it does not limit what is
                attended to.
            stride: Step of the queries, ≥ 1.
            padding: An integer, one per axis, a pair (before, after) per axis, "same" or "valid".
            padding_mode: "zeros", "reflect", "replicate" or "circular"; padded pixels are keys as well.
            dilation: Step of the window's taps, ≥ 1; it enters the output's size only.
            input_dilation: Step of the input pixels on the key grid, ≥ 1; above 1 as in a transposed convolution.
            groups: Number of blocks of each W_h, dividing in_channels and out_channels.
            bias: Whether there is a bias b.
            dropout: Probability in [0, 1) with which an attention weight is dropped in training; without content one
                draw serves the whole batch.
            impl: "reference" (explicit scores, written to be read), "content" (in little memory; compiled, the same as
                "reference"), "dense" (explicit weights in large products), "flex" (torch's FlexAttention, never chosen
                by itself; without gate and dropout; on the CPU without gradients), "fourier" (fast transforms),
                "separable" (one softmax per axis; axis-additive encodings), "shift" (a convolution; hard heads of
                axis-additive encodings; their gradient is zero) or "auto": what `plan` chooses.
            kernel_values: Whether the matrices W_h are held as the kernel of a convolution, (out_channels,
                in_channels // groups, *kernel_size), which takes one head per tap; None does so if the layer runs as
                that convolution, because its encoding is a `Shift`. The function is the same.
            device: Where to put the parameters.
            dtype: Dtype of the parameters, the encoding's included.

        Raises:
            ArgumentError: An argument is out of range or does not fit the others.
            UnknownNameError: The name of the encoding, the padding mode or the path is unknown.
        """
        super().__init__()
        require_sizes(
            in_channels=in_channels, out_channels=out_channels, num_heads=num_heads, groups=groups, dropout=dropout
        )
        self.in_channels, self.out_channels, self.num_heads, self.groups = in_channels, out_channels, num_heads, groups
        self.dropout, self.head_width = float(dropout), head_width
        self._geometry = geometry = Geometry.parse(
            self.dims,
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            padding_mode=padding_mode,
            dilation=dilation,
            input_dilation=input_dilation,
        )
        self.encoding = fitting_encoding(encoding, num_heads, self.dims)
        self._window = window_convolution(geometry) if math.prod(geometry.kernel_size) == num_heads else None
        if kernel_values is None:
            kernel_values = head_width is None and impl in _CONVOLUTION_PATHS and is_window(self.encoding, geometry)
        self.values = make_values(
            num_heads, in_channels, out_channels, groups, head_width, geometry.kernel_size if kernel_values else None
        )
        if not isinstance(content, bool | Content):
            raise ArgumentError(must_be("content", "True, False or a Content", content))
        self.content_terms = terms = Content() if content is True else content or None
        self.content = ContentScores(terms, in_channels, num_heads, self.encoding.feature_width) if terms else None
        bound = (num_heads * in_channels // groups) ** -0.5
        self.bias = nn.Parameter(torch.empty(out_channels).uniform_(-bound, bound)) if bias else None
        self.gate_kind: GateKind | None = None
        self.register_parameter("gate", None)
        self.impl = impl
        self.to(device=device, dtype=dtype)

    def _run(self, x: Tensor) -> Tensor:
        """Applies the layer to a batch of images."""
        window, values = self.window_convolution(), self.values
        if window is None:
            return self._attend(x)
        kernel = window.run.kernel(values.maps()) if values.kernel_size is None else values()
        require_images(x, self.in_channels, self.dims, kernel.dtype)
        if min(x.shape[2:]) < window.smallest:
            return self._attend(x)
        return window.run.convolve(x, kernel, self.groups, self.bias)

    @property
    def impl(self) -> str:
        """The requested path, or "auto"; checked when it is assigned."""
        return self._impl

    @impl.setter
    def impl(self, path: str) -> None:
        if path == "flex" and self.gate_kind is not None:
            raise ArgumentError(must_be("impl", '"auto", "content" or "reference" with a gate', path))
        self._impl = fitting_path(path, self.encoding, content=self.content is not None, dropout=self.dropout)

    def plan(
        self, shape: Sequence[int], dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Plan:
        """Returns how `forward` computes in the present mode, and what it costs.

        Args:
            shape: Shape of the images, (batch, in_channels, *spatial).
            dtype: Their dtype; None means the weights'.
            device: Their device; None means the weights'.

        Returns:
            The path with its reason, operations, working memory and error bound.

        Raises:
            ShapeError: The shape is not one that `forward` takes.
            ArgumentError: The shape is not whole numbers, or the path requested cannot compute the layer as it is.

        Example:
            >>> from convattn.layers import RelativeAttention2d
            >>> RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic").plan((1, 3, 32, 32)).path
            'separable'
        """
        return describe_layer(self, shape, dtype, device)

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
            ArgumentError: Sizes were given, but the weights depend on the images.
            ShapeError: The sizes are not as many as the layer has axes, or smaller than the window.
        """
        if isinstance(spatial, Tensor):
            self._require_images(spatial)
            axes = self.geometry.axes(spatial.shape[2:])
            keys = pad_keys(spatial, self.geometry)
        else:
            axes, keys = self.geometry.axes(axis_lists("spatial", spatial, self.dims, least=1)), None
            if self.content is not None:
                raise ArgumentError(must_be("spatial", "images, because the scores depend on content", spatial))
        weights = self._weights(keys, axes)
        shape = [len(axis.queries) for axis in axes] + [axis.keys for axis in axes]
        return weights.view(*weights.shape[:-2], *shape)

    def options(self) -> dict[str, Any]:
        """Returns the arguments that rebuild the layer, except encoding and content, as JSON types."""
        return layer_options(self)

    def extra_repr(self) -> str:
        """Returns the arguments for printing, without those at their defaults."""
        return printed_options(self)

    def needs_content(self) -> bool:
        """Tells whether content scores change the result of a call in the present mode, or have a gradient."""
        if self.content is None:
            return False
        content, gate = self.content, self.gate
        if gate is None or self.gate_kind != "tanh" or self._impl == "content" or not can_be_read(gate):
            return True
        learns = torch.is_grad_enabled() and (gate.requires_grad or any(p.requires_grad for p in content.parameters()))
        return learns or bool(gate.detach().any())

    def window_convolution(self) -> WindowConvolution | None:
        """Returns the convolution that the layer is in the present mode; None unless heads are its window's taps."""
        window, encoding = self._window, self.encoding
        if window is None or type(encoding) is not Shift or encoding.displacements != window.displacements:
            return None
        if self._impl not in _CONVOLUTION_PATHS or (self.dropout and self.training):
            return None
        return None if self.content is not None and self.needs_content() else window

    def _attend(self, x: Tensor) -> Tensor:
        """Computes the layer where its heads are not the taps of its window."""
        self._require_images(x)
        axes, content = self.geometry.axes(x.shape[2:]), self.needs_content()
        if not content and self.impl != "reference":
            path, maps = path_of(self, x.shape, x.dtype, x.device, axes)
            return path.attend(x, maps, self.bias)
        keys = pad_keys(x, self.geometry)
        explicit = self.impl == "reference" or (torch.compiler.is_compiling() and self.impl != "flex")
        y = self._reference(keys, axes, content=content) if explicit else self._content(keys, axes)
        return y if self.bias is None else y + self.bias.to(y.dtype).view(-1, *(1,) * self.dims)

    def _require_images(self, x: Tensor) -> None:
        require_images(x, self.in_channels, self.dims, next(self.values.parameters()).dtype)

    def _share(self) -> Float[Tensor, " heads"] | None:
        """Computes the share of position per head; None without a gate."""
        return None if self.gate is None or self.gate_kind is None else position_share(self.gate, self.gate_kind)

    def _weights(self, keys: Tensor | None, axes: Sequence[Axis]) -> Tensor:
        """Weights in at least float32: (heads, queries, keys), with content (images, heads, queries, keys)."""
        return explicit_weights(self.encoding, self.content, self._share(), keys, axes, next(self.values.parameters()))

    def _reference(self, keys: Tensor, axes: Sequence[Axis], *, content: bool) -> Tensor:
        weights, dropout = self._weights(keys if content else None, axes), self.dropout if self.training else 0.0
        y = attend(weights, keys, self.values.maps(), self.groups, dropout)
        return y.view(*y.shape[:2], *(len(axis.queries) for axis in axes))

    def _content(self, keys: Tensor, axes: Sequence[Axis]) -> Tensor:
        assert self.content is not None
        share, dropout, maps = self._share(), self.dropout if self.training else 0.0, self.values.maps()
        return self.content.attend(
            keys, axes, self.encoding, maps, self.groups, share=share, dropout=dropout, path=self.impl
        )

    def _maps(self) -> Tensor:
        return self.values.maps()


@final
class RelativeAttention1d(RelativeAttention):
    """Relative self-attention on sequences (batch, channels, positions); see `RelativeAttention`.

    Example:
        >>> import torch
        >>> RelativeAttention1d(3, 5, 2, "sinusoidal")(torch.zeros(7, 3, 11)).shape
        torch.Size([7, 5, 11])
    """

    dims = 1


@final
class RelativeAttention2d(RelativeAttention):
    """Relative self-attention on images (batch, channels, rows, cols); see `RelativeAttention`.

    Example:
        >>> import torch
        >>> layer = RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic", kernel_size=3, stride=2, padding=1)
        >>> layer(torch.zeros(7, 3, 11, 13)).shape
        torch.Size([7, 5, 6, 7])
    """

    dims = 2


@final
class RelativeAttention3d(RelativeAttention):
    """Relative self-attention on volumes (batch, channels, depth, rows, cols); see `RelativeAttention`.

    Example:
        >>> import torch
        >>> RelativeAttention3d(2, 3, 2, "distance")(torch.zeros(1, 2, 3, 5, 7)).shape
        torch.Size([1, 3, 3, 5, 7])
    """

    dims = 3
