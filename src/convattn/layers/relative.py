"""Relative self-attention on grids of any number of axes."""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings import Encoding
from convattn.errors import ArgumentError, must_be
from convattn.functional import attend, attention_weights, displacement_scores, gated_weights, pad_keys
from convattn.grid import Axis, Geometry, Padding, PerAxis, axis_lists, whole_number
from convattn.layers.arguments import fitting_encoding, fitting_path, require_images, require_sizes
from convattn.layers.call import Call, work_of
from convattn.layers.content import Content, ContentScores
from convattn.layers.description import describe, describe_content
from convattn.layers.execution import compute
from convattn.layers.gate import GateKind, looks_at_content, share_of_position
from convattn.layers.kept import Kept
from convattn.layers.kernel import HasKernel
from convattn.layers.values import FactoredValues, MergedValues
from convattn.records import Plan

__all__ = ["RelativeAttention"]


class RelativeAttention(HasKernel, ABC):
    """Multi-head self-attention on a grid, whose heads score displacements: y[q] = b + Σ_h Σ_k A_h[q, k] W_h x[k].

    A_h[q, k] is the softmax over all keys k of s_h(k − q), plus content scores where asked. Keys are the pixels of
    the padded image; queries stand where a convolution with the same arguments has the middle of its window.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, §2; `docs/theory.md` §1.

    Attributes:
        dims: Number of spatial axes.
        encoding: Displacement → score per head.
        values: W_h, merged or factored.
        content: Content scores, or None.
        bias: b, (out_channels,), or None.
        gate, gate_kind: λ or g, (heads,), of a gated layer, and the function that makes a share of it; or None.
        geometry: Window, stride, padding and dilation, one entry per axis.
        dropout: Probability with which an attention weight is dropped in training.
        impl: Path demanded, or "auto".
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
        self.geometry = Geometry.parse(
            self.dims,
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            padding_mode=padding_mode,
            dilation=dilation,
            input_dilation=input_dilation,
        )
        self.encoding = fitting_encoding(encoding, num_heads, self.dims)
        if head_width is None:
            self.values: MergedValues | FactoredValues = MergedValues(num_heads, in_channels, out_channels, groups)
        else:
            whole_number("head_width", head_width)
            self.values = FactoredValues(num_heads, in_channels, out_channels, groups, head_width=head_width)
        if not isinstance(content, bool | Content):
            raise ArgumentError(must_be("content", "True, False or a Content", content))
        self.content_terms = terms = Content() if content is True else content or None
        self.content = ContentScores(terms, in_channels, num_heads, self.encoding.feature_width) if terms else None
        bound = (num_heads * in_channels // groups) ** -0.5
        self.bias = nn.Parameter(torch.empty(out_channels).uniform_(-bound, bound)) if bias else None
        self.gate_kind: GateKind | None = None
        self.register_parameter("gate", None)
        self.impl = fitting_path(impl, self.encoding, content=terms is not None, dropout=self.dropout)
        self._kept = Kept()
        self.to(device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "batch channels *spatial"]) -> Float[Tensor, "batch outputs *queries"]:
        """Attends.

        Args:
            x: Images (batch, in_channels, *spatial), in the dtype of the weights, or any under autocast.

        Returns:
            (batch, out_channels, *out), the size that `nn.ConvNd` with the same arguments gives.

        Raises:
            ShapeError: Wrong rank or number of channels, or an image smaller than the window.
            ArgumentError: The dtype of x is not that of the weights.
            DeviceError: FlexAttention cannot run here: gradients on the CPU, or a device that is neither CUDA nor CPU.
        """
        content = self.content is not None and looks_at_content(self.content, self.gate, self.gate_kind, self.impl)
        afresh = content or torch.compiler.is_compiling() or (self.training and self.dropout)
        if not afresh and (y := self._kept.attend(x, self, self.geometry, self.impl)) is not None:
            return y
        self._require_images(x)
        axes = self.geometry.axes(x.shape[2:])
        if not content and self.impl != "reference":
            call = self._call(x.shape, x.dtype, x.device, axes)
            return compute(call, self._kept.prepare(call, training=self.training), x)
        keys = pad_keys(x, self.geometry)
        explicit = self.impl == "reference" or (torch.compiler.is_compiling() and self.impl != "flex")
        y = self._reference(keys, axes, content=content) if explicit else self._content(keys, axes)
        return y if self.bias is None else y + self.bias.to(y.dtype).view(-1, *(1,) * self.dims)

    def plan(
        self, shape: Sequence[int], dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Plan:
        """Tells how `forward` computes in the current mode, and what it costs.

        Args:
            shape: Shape of the images, (batch, in_channels, *spatial).
            dtype: Their dtype; the weights' where None.
            device: Their device; the weights' where None.

        Returns:
            The path with its reason, operations, working memory and error bound.

        Raises:
            ShapeError: The shape is not one that `forward` takes.
            ArgumentError: The shape is not whole numbers, or the path demanded cannot compute the layer as it is.

        Example:
            >>> from convattn.layers import RelativeAttention2d
            >>> RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic").plan((1, 3, 32, 32)).path
            'separable'
        """
        weight = next(self.values.parameters())
        sizes = axis_lists("shape", shape, self.dims + 2, least=0)
        x = torch.empty(sizes, dtype=dtype or weight.dtype, device="meta")
        self._require_images(x)
        call = self._call(x.shape, x.dtype, torch.device(device or weight.device), self.geometry.axes(x.shape[2:]))
        if self.content is not None and looks_at_content(self.content, self.gate, self.gate_kind, self.impl):
            auto = ("content", "the scores depend on the input")
            path, reason = auto if self.impl == "auto" else (self.impl, "demanded")
            width = self.content.query.out_features // self.num_heads
            return describe_content(call, path, reason, width, features=self.content.uses_position)
        return describe(call, None if self.impl == "reference" else self._kept.prepare(call, training=self.training))

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
            ArgumentError: Sizes were given where the weights depend on the images.
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
        """Returns the arguments that rebuild the layer, encoding and content apart, as JSON types."""
        return {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "num_heads": self.num_heads,
            "head_width": self.head_width,
            "kernel_size": list(self.geometry.kernel_size),
            "stride": list(self.geometry.stride),
            "padding": [list(pair) for pair in self.geometry.padding],
            "padding_mode": self.geometry.padding_mode,
            "dilation": list(self.geometry.dilation),
            "input_dilation": list(self.geometry.input_dilation),
            "groups": self.groups,
            "bias": self.bias is not None,
            "dropout": self.dropout,
            "impl": self.impl,
            **({} if self.gate_kind is None else {"gate": self.gate_kind}),
        }

    def extra_repr(self) -> str:
        """Returns the arguments, for printing; those at their defaults are left out."""
        plain = {"head_width": None, "groups": 1, "bias": True, "dropout": 0.0, "impl": "auto", "gate": "sigmoid"}
        plain |= vars(Geometry.parse(self.dims))
        shown = {k: v for k, v in {**self.options(), **vars(self.geometry)}.items() if k in plain and v != plain[k]}
        sizes = [str(self.in_channels), str(self.out_channels), f"num_heads={self.num_heads}"]
        return ", ".join(sizes + [f"{name}={value!r}" for name, value in shown.items()])

    def _require_images(self, x: Tensor) -> None:
        require_images(x, self.in_channels, self.dims, next(self.values.parameters()).dtype)

    def _weights(self, keys: Tensor | None, axes: Sequence[Axis]) -> Tensor:
        """Weights in at least float32: (heads, queries, keys), with content (images, heads, queries, keys)."""
        parameter = next(self.values.parameters())
        dtype = torch.promote_types(parameter.dtype if keys is None else keys.dtype, torch.float32)
        with torch.autocast(parameter.device.type, enabled=False):
            position = displacement_scores(self.encoding.table(axes, dtype, parameter.device), axes)
        if self.content is None or keys is None:
            return attention_weights(position)
        content = self.content(keys, axes, self.encoding)
        share = share_of_position(self.gate, self.gate_kind)
        if share is None:
            return attention_weights(position + content)
        return gated_weights(attention_weights(content), attention_weights(position), share)

    def _reference(self, keys: Tensor, axes: Sequence[Axis], *, content: bool) -> Tensor:
        weights, dropout = self._weights(keys if content else None, axes), self.dropout if self.training else 0.0
        y = attend(weights, keys, self.values.maps(), self.groups, dropout)
        return y.view(*y.shape[:2], *(len(axis.queries) for axis in axes))

    def _content(self, keys: Tensor, axes: Sequence[Axis]) -> Tensor:
        assert self.content is not None
        share, dropout = share_of_position(self.gate, self.gate_kind), self.dropout if self.training else 0.0
        return self.content.attend(
            keys, axes, self.encoding, self.values.maps(), self.groups, share=share, dropout=dropout, path=self.impl
        )

    def _call(self, shape: torch.Size, dtype: torch.dtype, device: torch.device, axes: tuple[Axis, ...]) -> Call:
        """Gathers what a path needs to know before it sees an image."""
        return Call(
            encoding=self.encoding,
            values=self.values,
            bias=self.bias,
            geometry=self.geometry,
            spatial=tuple(shape[2:]),
            axes=axes,
            work=work_of(self.values, shape, axes, dtype),
            impl=self.impl,
            dropout=self.dropout if self.training else 0.0,
            dtype=dtype,
            device=device,
        )
