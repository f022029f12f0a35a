"""Attention layers of other libraries of which heads can be replaced, read one by one, recognised by full name."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import final

from torch import Tensor, nn

from convattn.adapters.native import NativeAttention, TokenAttention, linear
from convattn.adapters.readable import require_linear
from convattn.adapters.replacement.calls import SequenceAttention, TorchAttention
from convattn.adapters.timm import TimmAttention, read_timm_attention
from convattn.adapters.transformers import TransformersAttention, read_transformers_attention
from convattn.convert.classes import full_name
from convattn.errors import UnsupportedModelError


@final
@dataclass(frozen=True, kw_only=True)
class ReadAttention(TokenAttention):
    """One layer, whose W_out another module may apply."""

    output: nn.Linear | None  # W_out with its bias; None if another module applies it
    wrap: Callable[[nn.Module], nn.Module]  # Gives a module from tokens to tokens the call signature of this layer


def read_attention(attention: nn.Module) -> ReadAttention:
    """Reads a layer by its class, or raises UnsupportedModelError with the reason alone."""
    read = _READERS.get(full_name(type(attention)))
    if read is None:
        raise UnsupportedModelError("attention of its class is not replaced")
    return read(attention)


def _timm(attention: nn.Module) -> ReadAttention:
    return _from_native(read_timm_attention(("",), attention), TimmAttention)


def _transformers(attention: nn.Module) -> ReadAttention:
    wrap = partial(TransformersAttention, config=attention.config)
    return _from_native(read_transformers_attention(("",), attention), wrap)


def _from_native(native: NativeAttention, wrap: Callable[[nn.Module], nn.Module]) -> ReadAttention:
    same = {item.name: getattr(native, item.name) for item in fields(TokenAttention)}
    return ReadAttention(**same, output=native.output, wrap=wrap)


def _bert(attention: nn.Module) -> ReadAttention:
    if attention.is_decoder or attention.is_causal:
        raise UnsupportedModelError("it is a decoder's, which sees only what comes before")
    query, key, value = (require_linear(attention, name) for name in ("query", "key", "value"))
    return ReadAttention(
        heads=int(attention.num_attention_heads),  # type: ignore[arg-type]
        query=query,
        key=key,
        value=value,
        output=None,
        dropout=float(attention.dropout.p),  # type: ignore[union-attr, arg-type]
        wrap=partial(SequenceAttention, config=attention.config),
    )


def _torch(attention: nn.Module) -> ReadAttention:
    assert isinstance(attention, nn.MultiheadAttention)
    refused = {
        "its keys and values have widths of their own": attention.in_proj_weight is None,
        "it has learned keys and values beside the tokens": attention.bias_k is not None or attention.add_zero_attn,
        "its batch is the second axis": not attention.batch_first,
    }
    reasons = [reason for reason, found in refused.items() if found]
    if reasons:
        raise UnsupportedModelError(reasons[0])
    out = attention.out_proj
    biases: tuple[Tensor | None, ...] = (None,) * 3
    if attention.in_proj_bias is not None:
        biases = attention.in_proj_bias.chunk(3)
    parts = zip(attention.in_proj_weight.chunk(3), biases, strict=True)
    query, key, value = (linear(*part, like=out) for part in parts)
    return ReadAttention(
        heads=attention.num_heads,
        query=query,
        key=key,
        value=value,
        output=linear(out.weight, out.bias, like=out),
        dropout=attention.dropout,
        wrap=TorchAttention,
    )


_READERS: dict[str, Callable[[nn.Module], ReadAttention]] = {
    "timm.layers.attention.Attention": _timm,
    "transformers.models.vit.modeling_vit.ViTAttention": _transformers,
    "transformers.models.bert.modeling_bert.BertSelfAttention": _bert,
    "torch.nn.modules.activation.MultiheadAttention": _torch,
}
