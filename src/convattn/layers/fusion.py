"""Fusion of an attention layer with the linear map that follows it."""

import copy
from typing import TypeVar

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from convattn.errors import (
    ArgumentError,
    ConversionError,
    ShapeError,
    UnsupportedModelError,
    must_be,
)
from convattn.layers.gated import (
    GatedRelativeAttention1d,
    GatedRelativeAttention2d,
    GatedRelativeAttention3d,
)
from convattn.layers.relative import (
    RelativeAttention,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)
from convattn.layers.values import FactoredValues, MergedValues

_Layer = TypeVar("_Layer", bound=RelativeAttention)

_LAYERS = (
    *(RelativeAttention1d, RelativeAttention2d, RelativeAttention3d),
    *(GatedRelativeAttention1d, GatedRelativeAttention2d, GatedRelativeAttention3d),
)
_CONVOLUTIONS: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def fuse(layer: _Layer, following: nn.Module) -> _Layer:
    """Fuses an attention layer with the linear map L of every pixel that follows it, for inference.

    `L(y[q]) = W_L (b + Σ_h Σ_k A_h[q, k] W_h x[k]) + b_L` is attention with the same weights A_h, the matrices
    `W'_h = W_L W_h` and the bias `b' = W_L b + b_L`. Scores, gate, dropout of attention weights and path stay as they
    are. Of factored matrices W_h = W_out W_val only the output factor changes, W_L W_out; the head width stays. The new
    numbers are computed in float64 and rounded once to the dtype of the old ones.

    A layer with groups is refused: after a map that joins all channels its matrices would no longer be block-diagonal,
    but `groups` times as large as before, and the fused layer slower than the two.

    Source: `docs/explanation/theory.md` §1.

    Args:
        layer: The attention layer, without groups; it is not changed.
        following: An `nn.Linear` over the channels of each pixel, or a convolution of torch with as many axes, a kernel
            of one pixel, stride 1 and neither padding nor groups; it is not changed.

    Returns:
        A new layer of the same class, with as many outputs as `following` has, in the same mode; nothing is shared.

    Raises:
        UnsupportedModelError: One of the two is another module, or has hooks.
        ConversionError: The layer has groups, or the merged numbers are not finite in its dtype.
        ArgumentError: `following` does not act on single pixels, or has another dtype or device; ShapeError if it takes
            another number of channels.

    Example:
        >>> from convattn.layers import RelativeAttention2d
        >>> layer, dense = RelativeAttention2d(3, 5, 9, "quadratic"), nn.Linear(5, 7)
        >>> fused, x = fuse(layer, dense), torch.randn(2, 3, 11, 13)
        >>> two_steps = dense(layer(x).movedim(1, -1)).movedim(-1, 1)
        >>> fused(x).shape == two_steps.shape, torch.dist(fused(x), two_steps).item() < 1e-4
        (True, True)
    """
    _require_plain(layer)
    weight, bias = _pixel_map(layer, following)
    fused = copy.deepcopy(layer)
    with torch.no_grad():
        if isinstance(fused.values, MergedValues):
            product = fused.values.held(_times(weight, fused.values.maps()))
            fused.values.weight = _rounded("values", product, like=fused.values.weight)
        else:
            fused.values.output = _rounded(
                "values", _times(weight, fused.values.output), like=fused.values.output
            )
        fused.bias = _joined_bias(weight, bias, fused.bias)
    fused.out_channels = len(weight)
    return fused


def _pixel_map(layer: RelativeAttention, following: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Checks the following module; returns its matrix (outputs, channels) and its bias."""
    name, convolution = type(following).__name__, _CONVOLUTIONS[layer.dims]
    if isinstance(following, LazyModuleMixin):
        raise UnsupportedModelError(
            f"cannot fuse {name}: its sizes are unknown until it sees an input"
        )
    if type(following) is not nn.Linear and type(following) is not convolution:
        raise UnsupportedModelError(
            f"cannot fuse {name} with {type(layer).__name__}: known are Linear and {convolution.__name__} with a kernel"
            " of one pixel"
        )
    _require_no_hooks(following)
    if isinstance(following, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        _require_single_pixels(following)
    weight, bias = following.weight, following.bias
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)
    if weight.shape[1] != layer.out_channels:
        raise ShapeError(
            f"following must be a map of the layer's {layer.out_channels} channels, but takes {weight.shape[1]}"
        )
    values = next(layer.values.parameters())
    if (weight.dtype, weight.device) != (values.dtype, values.device):
        expectation = f"in the layer's dtype and on its device, {values.dtype} on {values.device}"
        raise ArgumentError(
            f"following must be {expectation}, but is in {weight.dtype} on {weight.device}"
        )
    return weight.flatten(1), bias


def _require_single_pixels(convolution: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
    """Refuses a convolution that mixes or skips pixels, or keeps channels apart."""
    ones, zeros = (1,) * len(convolution.kernel_size), (0,) * len(convolution.kernel_size)
    plain = {
        "kernel_size": (ones,),
        "stride": (ones,),
        "padding": (zeros, "same", "valid"),
        "groups": (1,),
    }
    for name, allowed in plain.items():
        value = getattr(convolution, name)
        if value not in allowed:
            raise ArgumentError(
                must_be(f"following.{name}", f"{allowed[0]}, a map of single pixels", value)
            )


def _require_plain(layer: RelativeAttention) -> None:
    """Refuses a layer of an unknown class, with hooks, or with block-diagonal matrices."""
    if type(layer) not in _LAYERS:
        known = ", ".join(kind.__name__ for kind in _LAYERS)
        raise UnsupportedModelError(f"cannot fuse into {type(layer).__name__}: known are {known}")
    if type(layer.values) not in (MergedValues, FactoredValues):
        raise UnsupportedModelError(
            f"cannot fuse into values of type {type(layer.values).__name__}: known are MergedValues and FactoredValues"
        )
    _require_no_hooks(layer)
    _require_no_hooks(layer.values)
    if layer.groups > 1:
        raise ConversionError(
            f"cannot fuse a layer with groups={layer.groups}: joined with a map of all channels, its matrices would"
            f" not be block-diagonal but {layer.groups} times as large; keep the two apart"
        )


def _require_no_hooks(module: nn.Module) -> None:
    """Refuses a module whose hooks may change what it computes."""
    if module._forward_hooks or module._forward_pre_hooks:
        raise UnsupportedModelError(
            f"cannot fuse {type(module).__name__}: it has forward hooks, as in pruning; make them permanent or remove"
            " them first"
        )


def _times(
    weight: Tensor, matrices: Float[Tensor, "heads channels inputs"]
) -> Float[Tensor, "heads outputs inputs"]:
    """Multiplies each head's matrix from the left, in float64."""
    pattern = "outputs channels, heads channels inputs -> heads outputs inputs"
    return einsum(weight.double(), matrices.double(), pattern)


def _joined_bias(
    weight: Tensor, bias: Tensor | None, before: nn.Parameter | None
) -> nn.Parameter | None:
    """Returns W_L b + b_L, with zero for a missing bias; None if both are missing."""
    if before is None and bias is None:
        return None
    terms = [] if bias is None else [bias.double()]
    if before is not None:
        terms.append(weight.double() @ before.double())
    learns = any(term is not None and term.requires_grad for term in (bias, before))
    like = nn.Parameter(weight[:0], requires_grad=learns)
    return _rounded("bias", sum(terms[1:], terms[0]), like=like)


def _rounded(what: str, exact: Float[Tensor, "*shape"], *, like: nn.Parameter) -> nn.Parameter:
    """Rounds once to the dtype of a parameter; the new parameter learns if that one does."""
    rounded = exact.to(like.dtype, copy=True).contiguous()
    if not rounded.is_meta and not torch.isfinite(rounded).all():
        raise ConversionError(f"cannot fuse: the merged {what} would not be finite in {like.dtype}")
    return nn.Parameter(rounded, requires_grad=like.requires_grad)
