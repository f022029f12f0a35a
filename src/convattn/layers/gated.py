"""Gated attention: each head mixes a content distribution and a position distribution."""

from abc import ABC
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from convattn.encodings import Encoding
from convattn.errors import ArgumentError, UnknownNameError, must_be
from convattn.layers.content_scores import Content
from convattn.layers.relative import GateKind, RelativeAttention


class GatedRelativeAttention(RelativeAttention, ABC):
    """Heads that choose between what and where: A_h = (1 − s_h) softmax(content) + s_h softmax(position).

    Adding the two scores lets the larger one drown the other; mixing the two distributions does not. Both have the same
    values W_h. The share s of position comes from one number per head:

    - "sigmoid": s = σ(λ), λ = 1 at the start, a share of 0.73. s reaches 1 only by rounding, and then has no gradient.
    - "tanh": s = 1 − tanh(g), g = 0 at the start: no content, exactly, and still a gradient, so that the gate can open.
      A step that moves g below 0 subtracts content; the rows of A still sum to one. At g = 0 exactly queries and keys
      have the gradient zero; they learn from the first step on that moves g.

    While every g is exactly 0 and no gradient is asked for, content is not computed: the layer computes as it would
    without content, on the same path and to the same bits. With gradients, in compiled graphs, or once a gate is open,
    the weights of every query and key are computed, some images at a time (`plan` says how much memory that takes).

    Source: d'Ascoli et al. 2021 (ConViT), eq. 6, for "sigmoid"; `docs/explanation/theory.md` §6.

    Attributes:
        gate: λ or g, (heads,); see also the attributes of `RelativeAttention`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_heads: int,
        encoding: str | Encoding | Callable[[Tensor], Tensor],
        *,
        gate: GateKind = "sigmoid",
        content: Content = Content(position=False, content_bias=False),  # noqa: B008 - frozen
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        """Builds the layer.

        Args:
            in_channels: D_in ≥ 1.
            out_channels: D_out ≥ 1.
            num_heads: N_h ≥ 1.
            encoding: Name of an encoding, an encoding for as many heads and axes, or a function of displacements.
            gate: "sigmoid", or "tanh", which starts without content.
            content: Terms of the content distribution; by default content–content alone.
            device: Where to put the parameters.
            dtype: Dtype of the parameters.
            **options: Further arguments of `RelativeAttention`.

        Raises:
            ArgumentError: The content is not a `Content`, or FlexAttention is requested, which has no gate; or as in
                `RelativeAttention`.
            UnknownNameError: There is no such gate.
        """
        if gate not in ("sigmoid", "tanh"):
            raise UnknownNameError("gate", gate, ("sigmoid", "tanh"))
        if not isinstance(content, Content):
            raise ArgumentError(
                must_be("content", "a Content, because the gate mixes it with position", content)
            )
        if options.get("impl") == "flex":
            raise ArgumentError(
                must_be("impl", '"auto", "content" or "reference" with a gate', "flex")
            )
        super().__init__(in_channels, out_channels, num_heads, encoding, content=content, **options)
        self.gate_kind = gate
        self.gate = nn.Parameter(
            torch.ones(num_heads) if gate == "sigmoid" else torch.zeros(num_heads)
        )
        self.to(device=device, dtype=dtype)


@final
class GatedRelativeAttention1d(GatedRelativeAttention):
    """Gated relative self-attention on sequences: A_h = (1 − s_h) softmax(content) + s_h softmax(position).

    The share s_h of position is learned.

    Its arguments are those of `GatedRelativeAttention2d`, with one axis.

    Example:
        >>> layer = GatedRelativeAttention1d(4, 6, 3, "sinusoidal", gate="tanh")
        >>> layer(torch.zeros(2, 4, 11)).shape
        torch.Size([2, 6, 11])
    """

    dims = 1


@final
class GatedRelativeAttention2d(GatedRelativeAttention):
    """Gated relative self-attention on images: A_h = (1 − s_h) softmax(content) + s_h softmax(position).

    The share s_h of position is learned.

    Args:
        in_channels: Channels of the input, D_in ≥ 1.
        out_channels: Channels of the output, D_out ≥ 1.
        num_heads: Number of heads, N_h ≥ 1.
        encoding: Name of an encoding, an `Encoding` for as many heads, or a function of displacements.
        gate: "sigmoid", where s starts at 0.73, or "tanh", where it starts at exactly 1: without content.
        content: Terms of the content distribution; by default content–content alone.
        device: Where to put the parameters.
        dtype: Dtype of the parameters.
        **options: head_width, kernel_size, stride, padding, padding_mode, dilation, input_dilation, groups, bias,
            dropout, impl ("auto", "content" or "reference") and kernel_values, as in `RelativeAttention2d`.

    Example:
        >>> layer = GatedRelativeAttention2d(4, 6, 9, "quadratic", padding=1)
        >>> layer(torch.zeros(2, 4, 5, 7)).shape
        torch.Size([2, 6, 7, 9])
    """

    dims = 2


@final
class GatedRelativeAttention3d(GatedRelativeAttention):
    """Gated relative self-attention on volumes: A_h = (1 − s_h) softmax(content) + s_h softmax(position).

    The share s_h of position is learned.

    Its arguments are those of `GatedRelativeAttention2d`, with three axes.

    Example:
        >>> layer = GatedRelativeAttention3d(2, 3, 2, "distance", gate="tanh")
        >>> layer(torch.zeros(1, 2, 3, 5, 7)).shape
        torch.Size([1, 3, 3, 5, 7])
    """

    dims = 3
