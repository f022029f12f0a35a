"""Degenerate heads, of encodings with centres and widths: finding and removing them."""

import copy

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from convattn.encodings import Encoding
from convattn.errors import ArgumentError, UnsupportedModelError, must_be
from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet

_FLATTEST = 1 / 16**2
"""A standard deviation of 16 pixels, in 1/pixel²."""

_STRETCHED = 1e3
"""Condition number of Σ⁻¹ above which a head looks at a line."""


@torch.no_grad()
def degenerate_heads(encoding: Encoding) -> Bool[Tensor, " heads"]:
    """Tells which heads have no definite place: they look at all pixels alike, or at a whole line of pixels.

    With λ₁ ≥ … ≥ λ_n ≥ 0 the eigenvalues of Σ_h⁻¹, head h is degenerate where `λ₁ < 1/16²` (Σ⁻¹ near 0), in 1/pixel²,
    or `λ₁ > 1000 λ_n`. Its attention has the standard deviation 1/√λ₁ pixels in the direction where it is sharpest.

    On the paper's grid of 16 x 16 pixels a flat head is wider than the image in every direction. At the bound, a query
    in the middle with its centre on itself gives all pixels the same weight up to a factor exp(2 · 8² / (2 · 16²)) =
    1.28: the head takes the mean of the image.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, appendix on the generalised quadratic encoding.

    Args:
        encoding: The heads, which have centres and widths. Of a `Quadratic`, Σ⁻¹ is 2α times the identity and the
            condition number 1.

    Returns:
        Whether each head is degenerate, on the encoding's device.

    Raises:
        ArgumentError: The encoding is of another kind, or its numbers are not finite.

    Example:
        >>> from convattn.encodings import GeneralizedQuadratic
        >>> degenerate_heads(GeneralizedQuadratic(3, 2)).tolist()
        [False, False, False]
    """
    if encoding.head_shapes is None:
        expected = "one whose heads have centres and widths, as a GeneralizedQuadratic"
        raise ArgumentError(must_be("encoding", expected, type(encoding).__name__))
    if not all(torch.isfinite(parameter).all() for parameter in encoding.parameters()):
        raise ArgumentError(must_be("encoding", "of finite numbers", encoding))
    eigenvalues = _eigenvalues(encoding)
    largest, smallest = eigenvalues.amax(dim=1), eigenvalues.amin(dim=1)
    return ((largest < _FLATTEST) | (largest > _STRETCHED * smallest)).to(
        encoding.head_shapes.device
    )


def prune_heads(network: AttentionNet) -> AttentionNet:
    """Removes the heads that `degenerate_heads` tells, each with its matrix W_h; the rest is copied.

    The new network computes as if the W_h of the removed heads were zero: the output of a block loses exactly their
    share `Σ_k A_h[q, k] W_h x[k]`. So it usually needs some more training, as in the paper. Each block keeps at least
    one head: if all are degenerate, the sharpest, with the largest tr Σ⁻¹.

    The new network is saved and loaded like any other; its configuration has the number of heads of each block. Its
    parameters are new objects: make a new optimizer for it.

    Args:
        network: A network of encodings with centres and widths, without content; it is not changed.

    Returns:
        A new network in the same mode; nothing is shared.

    Raises:
        ArgumentError: The network is another, has content or other encodings, or as in `degenerate_heads`.
        UnsupportedModelError: A block has another mixer.

    Example:
        >>> network = AttentionNet("generalized_quadratic", width=8, depth=2, heads=3, ffn=8)
        >>> _ = nn.init.zeros_(network.get_parameter("blocks.1.mixer.encoding.shape")[0])
        >>> prune_heads(network).heads
        (3, 2)
    """
    sound = [_sound_heads(layer.encoding) for layer in _layers(network)]
    counts = [len(heads) for heads in sound]
    pruned = copy.deepcopy(network)
    options = dict(network.arguments["encoding_options"] or {})
    options.pop("centres", None)  # of all heads
    pruned.arguments |= {"heads": counts, "centres": "normal", "encoding_options": options or None}
    pruned.heads = tuple(counts)
    for layer, heads in zip(_layers(pruned), sound, strict=True):
        layer.num_heads = layer.encoding.num_heads = len(heads)
        for module in (layer.values, layer.encoding):
            for name, parameter in list(module.named_parameters(recurse=False)):
                values = parameter.detach()[heads]
                setattr(module, name, nn.Parameter(values, requires_grad=parameter.requires_grad))
    return pruned


def _sound_heads(encoding: Encoding) -> list[int]:
    """Lists the heads that are not degenerate; where all are, the sharpest."""
    degenerate = degenerate_heads(encoding)
    if degenerate.all():
        return [int(_eigenvalues(encoding).sum(dim=1).argmax())]
    return (~degenerate).nonzero().flatten().tolist()


@torch.no_grad()
def _eigenvalues(encoding: Encoding) -> Float[Tensor, "heads dims"]:
    """Returns the eigenvalues of Σ⁻¹ in float64 on the CPU, as squares of the singular values of S.

    That keeps all digits; eigenvalues of the product SᵀS would keep half.
    """
    assert encoding.head_shapes is not None
    return torch.linalg.svdvals(encoding.head_shapes.cpu().double()) ** 2


def _layers(network: AttentionNet) -> list[RelativeAttention2d]:
    """Returns each block's attention layer; raises if the network has content, or a block another layer."""
    if not isinstance(network, AttentionNet):
        raise ArgumentError(must_be("network", "an AttentionNet", type(network).__name__))
    if network.content:
        raise ArgumentError(
            "network must be without content: a head flat in position may still attend by content"
        )
    layers = []
    for number, block in enumerate(network.blocks):
        mixer = block.mixer
        if type(mixer) is not RelativeAttention2d:
            kind = type(mixer).__name__
            raise UnsupportedModelError(
                f"cannot prune block {number}: its mixer is {kind}, not RelativeAttention2d"
            )
        layers.append(mixer)
    return layers
