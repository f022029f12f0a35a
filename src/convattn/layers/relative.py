"""Relative self-attention on grids of any number of axes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings import Encoding, ScoreFunction, Shift, create_encoding
from convattn.errors import ArgumentError, ShapeError, UnknownNameError, must_be, must_be_a
from convattn.functional import (
    Cost,
    HeadMaps,
    Path,
    WindowConvolution,
    Work,
    attend,
    attention_weights,
    displacement_scores,
    gated_weights,
    make_path,
    pad_keys,
    position_share,
    window_convolution,
)
from convattn.functional.plan import REQUESTED, can_be_read
from convattn.functional.torch_modes import autocasts, without_autocast
from convattn.grid import Axis, Geometry, Padding, PerAxis, axis_lists, is_whole, whole_number
from convattn.layers.content_scores import Content, ContentScores
from convattn.layers.values import make_values
from convattn.record import Record

PATHS = ("auto", "content", "dense", "flex", "fourier", "reference", "separable", "shift")
"""Values of a layer's argument `impl`: the ways to compute it."""

GateKind: TypeAlias = Literal["sigmoid", "tanh"]
"""How a number per head becomes a share of attention; see `position_share`."""

_CONVOLUTION_PATHS = ("auto", "shift")
"""Paths on which hard heads run as a convolution."""


@dataclass(frozen=True)
class Plan(Record):
    """How an attention layer computes its output for images of one shape, and what that costs."""

    path: str  # "separable", "dense", "fourier", "shift", "content", "flex" or "reference"
    order: str  # "weights" if pixels are mixed before they are multiplied with the heads' matrices, "values" if after
    reason: str  # Why this path
    flops: int  # Floating-point operations of a forward pass; a multiplication and an addition count as two
    bytes: int  # Estimated working memory of a forward pass, beyond input, output and parameters
    bound: float  # Largest error beyond rounding for inputs of absolute value ≤ 1
    shape: tuple[int, ...]  # Shape of the images, (batch, channels, *spatial)
    dtype: str  # Dtype of the images
    device: str  # Device of the images

    def summary(self) -> str:
        """Returns the plan in a few lines of plain text."""
        return "\n".join(
            [
                f"{self.path} path, {self.order} first: {self.reason}",
                f"  images          {self.shape}, {self.dtype} on {self.device}",
                f"  operations      {self.flops:,}",
                f"  working memory  {self.bytes:,} bytes",
                f"  error           at most {self.bound:.3g} per unit of the input, beyond rounding",
            ]
        )


class HasKernel(nn.Module, ABC):
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
            ArgumentError: The dtype of x is not that of the weights.
            DeviceError: FlexAttention cannot run here: gradients on the CPU, or a device that is neither CUDA nor CPU.
        """
        x = self.batch_of(input)
        return self._run(x) if x is input else self._run(x)[0]

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
    def _maps(self) -> Tensor:
        """Returns W_h, (heads, outputs, channels // groups)."""

    @property
    def weight(self) -> Tensor:
        """W_h as a convolution's weight, (outputs, inputs // groups, *kernel_size); it takes one head per tap."""
        maps, taps = self._maps(), self.geometry.kernel_size
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


class RelativeAttention(HasKernel, ABC):
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
    without content, on the same path and to the same bits. With gradients, in compiled graphs, or once a gate is open,
    the weights of every query and key are computed, some images at a time (`plan` says how much memory that takes).

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

    def __init__(  # noqa: PLR0913 - the arguments of nn.ConvNd, plus those of attention
        self,
        in_channels: int,
        out_channels: int,
        num_heads: int,
        encoding: str | Encoding | Callable[[Tensor], Tensor],
        *,
        head_width: int | None = None,
        content: bool | Content = False,
        gate: GateKind | None = None,
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
            content: Whether scores depend on the input, or which of their terms do; with a gate they always do, by
                content–content alone unless a `Content` says more.
            gate: How each head mixes a softmax of content with one of position: "sigmoid", which starts at a share of
                0.73 for position, or "tanh", which starts at exactly 1, without content; None adds the two scores.
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
            device: Where to put the parameters.
            dtype: Dtype of the parameters, the encoding's included.

        Raises:
            ArgumentError: An argument is out of range or does not fit the others.
            UnknownNameError: The name of the encoding, the gate, the padding mode or the path is unknown.
        """
        super().__init__()
        sizes = require_sizes(in_channels, out_channels, num_heads, groups, dropout=dropout)
        self.in_channels, self.out_channels, self.num_heads, self.groups = sizes
        self.head_width = None if head_width is None else whole_number("head_width", head_width)
        self.dropout = float(dropout)
        self._geometry = geometry = Geometry.parse(
            self.dims,
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            padding_mode=padding_mode,
            dilation=dilation,
            input_dilation=input_dilation,
        )
        self.encoding = _fitting_encoding(encoding, num_heads, self.dims)
        self._window = (
            window_convolution(geometry) if math.prod(geometry.kernel_size) == num_heads else None
        )
        is_kernel = head_width is None and _is_window(self.encoding, geometry)
        self.values = make_values(
            num_heads,
            in_channels,
            out_channels,
            groups,
            head_width,
            geometry.kernel_size if is_kernel else None,
        )
        self.content_terms = terms = _content_terms(content, gate)
        self.content = (
            ContentScores(terms, in_channels, num_heads, self.encoding.feature_width)
            if terms
            else None
        )
        bound = (num_heads * in_channels // groups) ** -0.5
        self.bias = (
            nn.Parameter(torch.empty(out_channels).uniform_(-bound, bound)) if bias else None
        )
        self.gate_kind = gate
        self.gate = None if gate is None else nn.Parameter(start_of_gate(gate, num_heads))
        self.impl = impl
        self.to(device=device, dtype=dtype)

    def _run(self, x: Tensor) -> Tensor:
        """Applies the layer to a batch of images."""
        window, values = self.window_convolution(), self.values
        if window is None:
            return self._attend(x)
        kernel = window.kernel(values.maps()) if values.kernel_size is None else values()
        require_images(x, self.in_channels, self.dims, kernel.dtype)
        if min(x.shape[2:]) < window.smallest:
            return self._attend(x)
        return window.convolve(x, kernel, self.groups, self.bias)

    @property
    def impl(self) -> str:
        """The requested path, or "auto"; checked when it is assigned."""
        return self._impl

    @impl.setter
    def impl(self, path: str) -> None:
        if path == "flex" and self.gate_kind is not None:
            raise ArgumentError(
                must_be("impl", '"auto", "content" or "reference" with a gate', path)
            )
        self._impl = _fitting_path(
            path, self.encoding, content=self.content is not None, dropout=self.dropout
        )

    def plan(
        self,
        shape: Sequence[int],
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
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
        weight = self._like
        sizes = _image_shape(shape, self.in_channels, self.dims)
        x = torch.empty(sizes, dtype=dtype or weight.dtype, device="meta")
        on = torch.device(device or weight.device)
        require_images(x, self.in_channels, self.dims, weight.dtype, on)
        if self.needs_content() or self.impl == "reference":
            work = self._work(self.values.factors(), x.shape, x.dtype, on)
            path, reason, cost = self._explicit_cost(work)
            order, leak = "weights", 0.0
        else:
            chosen, maps = self.path_of(x.shape, x.dtype, on)
            path, reason, order, leak, cost = (
                chosen.name,
                chosen.reason,
                chosen.order,
                chosen.leak,
                chosen.cost(),
            )
            whole = maps.whole().detach()
            leak *= 0.0 if whole.is_meta else whole.double().abs().sum((0, 2)).max().item()
        kind = str(x.dtype).removeprefix("torch.")
        return Plan(path, order, reason, cost.flops, cost.bytes, 2 * leak, sizes, kind, str(on))

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
            axes, keys = (
                self.geometry.axes(axis_lists("spatial", spatial, self.dims, least=1)),
                None,
            )
            if self.content is not None:
                raise ArgumentError(
                    must_be("spatial", "images, because the scores depend on content", spatial)
                )
        weights = self._weights(keys, axes)
        shape = [len(axis.queries) for axis in axes] + [axis.keys for axis in axes]
        return weights.view(*weights.shape[:-2], *shape)

    def options(self) -> dict[str, Any]:
        """Returns the arguments that rebuild the layer, except encoding and content, as JSON types."""
        geometry = self.geometry
        return {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "num_heads": self.num_heads,
            "head_width": self.head_width,
            "kernel_size": list(geometry.kernel_size),
            "stride": list(geometry.stride),
            "padding": [list(pair) for pair in geometry.padding],
            "padding_mode": geometry.padding_mode,
            "dilation": list(geometry.dilation),
            "input_dilation": list(geometry.input_dilation),
            "groups": self.groups,
            "bias": self.bias is not None,
            "dropout": self.dropout,
            "impl": self.impl,
            "gate": self.gate_kind,
        }

    def extra_repr(self) -> str:
        """Returns the arguments for printing, without those at their defaults."""
        plain = {
            "head_width": None,
            "groups": 1,
            "bias": True,
            "dropout": 0.0,
            "impl": "auto",
            "gate": None,
        }
        plain |= vars(Geometry.parse(self.dims))
        given = {**self.options(), **vars(self.geometry)}
        shown = {
            name: value for name, value in given.items() if name in plain and value != plain[name]
        }
        sizes = [str(self.in_channels), str(self.out_channels), f"num_heads={self.num_heads}"]
        return ", ".join(sizes + [f"{name}={value!r}" for name, value in shown.items()])

    def needs_content(self) -> bool:
        """Tells whether content scores change the result in the present mode, or have a gradient."""
        if self.content is None:
            return False
        content, gate = self.content, self.gate
        if (
            gate is None
            or self.gate_kind != "tanh"
            or self._impl == "content"
            or not can_be_read(gate)
        ):
            return True
        learns = torch.is_grad_enabled() and (
            gate.requires_grad or any(p.requires_grad for p in content.parameters())
        )
        return learns or bool(gate.detach().any())

    def window_convolution(self) -> WindowConvolution | None:
        """Returns the convolution that equals the layer in the present mode; None unless heads are window taps."""
        window, encoding = self._window, self.encoding
        if (
            window is None
            or type(encoding) is not Shift
            or encoding.displacements != window.displacements
        ):
            return None
        if self._impl not in _CONVOLUTION_PATHS or (self.dropout and self.training):
            return None
        return None if self.content is not None and self.needs_content() else window

    def path_of(
        self, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> tuple[Path, HeadMaps]:
        """Chooses how a call without content is computed in the present mode.

        Args:
            shape: Shape of the images, which are not looked at.
            dtype: Their dtype.
            device: Their device.

        Returns:
            The path, with gradients to the encoding, and W_h.
        """
        maps = self.values.factors()
        impl = _fitting_path(
            self.impl, self.encoding, content=self.content is not None, dropout=self.dropout
        )
        return make_path(
            self._work(maps, shape, dtype, device), self.encoding, impl, self._dropout
        ), maps

    def _attend(self, x: Tensor) -> Tensor:
        """Computes the layer if its heads are not the taps of its window."""
        self._require_images(x)
        content = self.needs_content()
        if not content and self.impl != "reference":
            path, maps = self.path_of(x.shape, x.dtype, x.device)
            return path.attend(x, maps, self.bias)
        keys, axes = pad_keys(x, self.geometry), self.geometry.axes(x.shape[2:])
        if self.impl == "reference" or (torch.compiler.is_compiling() and self.impl != "flex"):
            weights = self._weights(keys if content else None, axes)
            y = attend(weights, keys, self.values.maps(), self.groups, self._dropout)
            y = y.view(*y.shape[:2], *(len(axis.queries) for axis in axes))
        else:
            assert self.content is not None
            share, maps = self._share(), self.values.maps()
            y = self.content.attend(
                keys,
                axes,
                self.encoding,
                maps,
                self.groups,
                share=share,
                dropout=self._dropout,
                path=self.impl,
            )
        return y if self.bias is None else y + self.bias.to(y.dtype).view(-1, *(1,) * self.dims)

    def _work(
        self, maps: HeadMaps, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Work:
        """Describes a call by its sizes."""
        return Work(
            batch=shape[0],
            channels=shape[1],
            outputs=(maps.value if maps.output is None else maps.output).shape[1],
            heads=len(maps.value),
            groups=maps.groups,
            inner=maps.value.shape[1],
            factored=maps.output is not None,
            axes=self.geometry.axes(shape[2:]),
            geometry=self.geometry,
            dtype=dtype,
            device=device,
        )

    def _explicit_cost(self, work: Work) -> tuple[str, str, Cost]:
        """Returns path, reason and cost of a call with content, or of the definition."""
        path, reason = (
            (self.impl, REQUESTED)
            if self.impl != "auto"
            else ("content", "the scores depend on the input")
        )
        if self.content is None or not self.needs_content():
            return path, reason, work.reference()
        key_width = self.content.query.out_features // self.num_heads
        along = [axis.highest - axis.lowest + 1 for axis in work.axes]
        displacements = sum(along) if self.encoding.axis_additive else math.prod(along)
        features = self.content.uses_position
        if path == "reference":
            return path, reason, work.explicit_content(key_width, features=features)
        if path != "flex":
            return path, reason, work.content(key_width, displacements if features else 0)
        fused = work.device.type == "cuda"
        slow = ", without gradients and with all weights in memory: the device is not CUDA"
        reason += ", in one kernel" if fused else slow
        return path, reason, work.flex(key_width, displacements if features else 0, fused=fused)

    @property
    def _like(self) -> Tensor:
        """A tensor with the dtype and the device of the weights."""
        return next(self.values.parameters())

    @property
    def _dropout(self) -> float:
        """Probability of dropping a weight in the present mode."""
        return self.dropout if self.training else 0.0

    def _require_images(self, x: Tensor) -> None:
        require_images(x, self.in_channels, self.dims, self._like.dtype)

    def _share(self) -> Float[Tensor, " heads"] | None:
        """Computes the share of position per head; None without a gate."""
        return (
            None
            if self.gate is None or self.gate_kind is None
            else position_share(self.gate, self.gate_kind)
        )

    def _weights(
        self, keys: Tensor | None, axes: Sequence[Axis]
    ) -> Float[Tensor, "*images heads queries keys"]:
        """Computes the weights of every query and key, in at least float32; with content one set for each image."""
        # Without key images, content is left out and the dtype of the weights counts.
        like, share = self._like, self._share()
        dtype = torch.promote_types(like.dtype if keys is None else keys.dtype, torch.float32)
        with without_autocast(like.device):
            position = displacement_scores(self.encoding.table(axes, dtype, like.device), axes)
        if self.content is None or keys is None:
            return attention_weights(position)
        scores = self.content(keys, axes, self.encoding)
        if share is None:
            return attention_weights(position + scores)
        return gated_weights(attention_weights(scores), attention_weights(position), share)

    def _maps(self) -> Tensor:
        return self.values.maps()


@final
class RelativeAttention1d(RelativeAttention):
    """Relative self-attention on sequences (batch, channels, positions), in the place of `nn.Conv1d`.

    Its output is y[q] = b + Σ_h Σ_k A_h[q, k] W_h x[k], where A_h[q, k] is the softmax over all positions k of a score
    of k − q.

    Its arguments are those of `RelativeAttention2d`, with one axis.

    Example:
        >>> import torch
        >>> RelativeAttention1d(3, 5, 2, "sinusoidal")(torch.zeros(7, 3, 11)).shape
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
        num_heads: Number of heads, N_h ≥ 1.
        encoding: Name of an encoding, as "quadratic", an `Encoding`, or a function of displacements,
            (…, 2) in pixels → (heads, …).
        head_width: D_h ≥ 1; None holds each W_h whole.
        content: Whether scores depend on the input, or, as a `Content`, which of their terms do; with a gate they do.
        gate: None adds scores of content and position. "sigmoid" and "tanh" mix a softmax of each by a learned share,
            which "tanh" starts without content.
        kernel_size: Window that gives the output its size; it does not limit what is attended to.
        stride: Step of the queries, ≥ 1.
        padding: An integer, one per axis, a pair (before, after) per axis, "same" or "valid".
        padding_mode: "zeros", "reflect", "replicate" or "circular"; padded pixels are keys as well.
        dilation: Step of the window's taps, ≥ 1; it enters the output's size only.
        input_dilation: Step of the input's pixels among the keys, ≥ 1; above 1 as in a transposed convolution.
        groups: Number of blocks of each W_h, dividing in_channels and out_channels.
        bias: Whether there is a bias b.
        dropout: Probability in [0, 1) with which an attention weight is dropped in training.
        impl: "auto", or what computes: "reference", "content", "dense", "flex", "fourier", "separable" or "shift".
        device: Where to put the parameters.
        dtype: Dtype of the parameters, the encoding's included.

    Example:
        >>> import torch
        >>> layer = RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic", kernel_size=3, stride=2, padding=1)
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
        >>> RelativeAttention3d(2, 3, 2, "distance")(torch.zeros(1, 2, 3, 5, 7)).shape
        torch.Size([1, 3, 3, 5, 7])
    """

    dims = 3


def require_sizes(
    in_channels: int, out_channels: int, num_heads: int, groups: int, *, dropout: float
) -> list[int]:
    """Returns the sizes; ArgumentError if one is not positive, groups do not divide channels, or dropout is ≥ 1."""
    channels = {"in_channels": in_channels, "out_channels": out_channels}
    sizes = [
        whole_number(*size)
        for size in {**channels, "num_heads": num_heads, "groups": groups}.items()
    ]
    for name, value in channels.items():
        if value % groups:
            raise ArgumentError(must_be(name, f"divisible by groups={groups}", value))
    if not (isinstance(dropout, int | float) and 0 <= dropout < 1):
        raise ArgumentError(must_be("dropout", "a probability in [0, 1)", dropout))
    return sizes


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


def _fitting_path(impl: str, encoding: Encoding, *, content: bool, dropout: float) -> str:
    """Returns `impl` if that path can compute the layer; raises UnknownNameError or ArgumentError otherwise."""
    if impl not in PATHS:
        raise UnknownNameError("impl", impl, PATHS)
    if content and impl not in ("auto", "content", "flex", "reference"):
        raise ArgumentError(
            must_be("impl", '"auto", "content", "flex" or "reference" with content', impl)
        )
    if content and dropout and impl == "flex":
        raise ArgumentError(
            must_be("impl", '"auto", "content" or "reference" with content and dropout', impl)
        )
    if not content and impl in ("content", "flex"):
        others = ", ".join(path for path in PATHS if path not in ("content", "flex"))
        raise ArgumentError(must_be("impl", f"one of {others} without content", impl))
    if dropout and impl in ("fourier", "separable", "shift"):
        raise ArgumentError(must_be("impl", '"auto", "dense" or "reference" with dropout', impl))
    if impl in ("separable", "shift") and not encoding.axis_additive:
        raise ArgumentError(
            must_be(
                "impl",
                '"auto", "dense", "fourier" or "reference" unless the encoding is axis-additive',
                impl,
            )
        )
    return impl


def _content_terms(content: bool | Content, gate: str | None) -> Content | None:
    """Returns the content terms of a layer; None if its scores do not depend on the input."""
    if gate not in (None, "sigmoid", "tanh"):
        raise UnknownNameError("gate", gate, ("sigmoid", "tanh"))
    if isinstance(content, Content):
        return content
    if not isinstance(content, bool):
        raise ArgumentError(must_be("content", "True, False or a Content", content))
    if gate is not None:
        return Content(position=False, content_bias=False)
    return Content() if content else None


def start_of_gate(kind: GateKind, num_heads: int) -> Float[Tensor, " heads"]:
    """Returns λ = 1, a share of position of 0.73, or g = 0, a share of exactly 1."""
    return torch.ones(num_heads) if kind == "sigmoid" else torch.zeros(num_heads)


def _is_window(encoding: Encoding, geometry: Geometry) -> bool:
    """Tells whether the heads are fixed, and are the taps of the window, one for each, row by row."""
    if not isinstance(encoding, Shift) or len(encoding.displacements) != math.prod(
        geometry.kernel_size
    ):
        return False
    return encoding.displacements == tuple(displacement for _, displacement in geometry.taps())


_AXES = {1: "positions", 2: "rows, cols", 3: "depth, rows, cols"}


def _image_shape(shape: Sequence[int], channels: int, dims: int) -> tuple[int, ...]:
    """Returns the shape of images as a tuple; raises ArgumentError if it is not (batch, channels, *spatial)."""
    valid = isinstance(shape, Sequence) and not isinstance(shape, str) and len(shape) == dims + 2
    if not valid or not all(is_whole(size) and size >= 0 for size in shape):
        raise ArgumentError(
            must_be("shape", f"{dims + 2} whole numbers (batch, {channels}, {_AXES[dims]})", shape)
        )
    return tuple(shape)


def require_images(
    x: Tensor, channels: int, dims: int, dtype: torch.dtype, device: torch.device | None = None
) -> None:
    """Checks images: ShapeError for a wrong shape; ArgumentError for no tensor or another dtype than the weights."""
    if not isinstance(x, Tensor):
        raise ArgumentError(must_be_a("x", "a tensor", x))
    if x.ndim != dims + 2 or x.shape[1] != channels:
        raise ShapeError(
            must_be("x", f"of shape (batch, {channels}, {dims} spatial sizes)", tuple(x.shape))
        )
    if x.dtype is not dtype:
        # Under autocast, images and weights may differ in dtype, unless one is float64, which it leaves as it is.
        autocast = autocasts(x.device if device is None else device) and torch.float64 not in (
            x.dtype,
            dtype,
        )
        if not (autocast and x.is_floating_point()):
            raise ArgumentError(must_be("x", f"of the weights' dtype {dtype}", x.dtype))
