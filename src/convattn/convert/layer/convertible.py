"""Which attention layers can be converted to a convolution."""

import torch
from torch import nn

from convattn.convert.classes import ATTENTION_LAYERS
from convattn.convert.taps import require_numbers
from convattn.errors import ConversionError, UnsupportedModelError
from convattn.layers import FactoredValues, MergedValues, RelativeAttention

__all__ = ["closed_gate", "require_convertible"]


def require_convertible(layer: nn.Module) -> RelativeAttention:
    """Returns the layer if it can become a convolution.

    Raises UnsupportedModelError for other modules, hooks, and parameters that are not finite real numbers, and
    ConversionError for scores that depend on content.
    """
    kind = type(layer).__name__
    if not isinstance(layer, RelativeAttention) or type(layer) not in ATTENTION_LAYERS:
        known = ", ".join(known.__name__ for known in ATTENTION_LAYERS)
        raise UnsupportedModelError(f"cannot convert {kind} to a convolution: supported layers are {known}")
    if type(layer.values) not in (MergedValues, FactoredValues):
        raise UnsupportedModelError(
            f"cannot convert {kind}: its values must be MergedValues or FactoredValues, but are"
            f" {type(layer.values).__name__}"
        )
    if layer.content is not None and layer.gate is None:
        raise ConversionError(f"cannot convert {kind}: its scores depend on content, those of a convolution do not")
    for name, module in layer.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            where = f" at {name}" if name else ""
            raise UnsupportedModelError(
                f"cannot convert {kind}: it has forward hooks{where} (pruning adds some); make them permanent or remove"
                " them first"
            )
    for name, number in layer.named_parameters():
        require_numbers(kind, name, number)
    return layer


def closed_gate(layer: RelativeAttention) -> float:
    """Returns the share of attention that a layer's gate gives to content; 0 without a gate.

    It is max_h 1 − σ(λ_h) or max_h |tanh(g_h)|. A share above eps of the weights' dtype raises ConversionError.
    """
    if layer.gate is None:
        return 0.0
    gate = layer.gate.detach().double()
    shares = torch.tanh(gate).abs() if layer.gate_kind == "tanh" else torch.sigmoid(-gate)
    share, head = shares.max(0)
    allowed = torch.finfo(next(layer.values.parameters()).dtype).eps
    if share.item() > allowed:
        raise ConversionError(
            f"cannot convert {type(layer).__name__}: its gate is open: head {head.item()} gives"
            f" {share.item():.3g} of its attention to content, and only up to {allowed:.3g} counts as rounding"
        )
    return share.item()
