"""Attention layers of other libraries of which heads can be replaced, read one by one, recognised by full name."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import final

from torch import nn

from convattn.adapters.native import NativeAttention, TokenAttention, linear, split_linear
from convattn.adapters.readable import require_linear
from convattn.adapters.replacement.calls import SequenceAttention, TorchAttention
from convattn.adapters.timm import TimmAttention, read_timm_attention
from convattn.adapters.transformers import TransformersAttention, read_transformers_attention
from convattn.convert.classes import full_name
from convattn.errors import UnsupportedModelError


@final
@dataclass(frozen=True)
class GatedPosition:
    """Attention by position, which is mixed with that by content: σ(λ) of the former, 1 − σ(λ) of the latter."""

    position: nn.Linear  # Scores of the heads from (columns, rows, columns² + rows²) of a displacement
    gates: nn.Parameter  # λ, (heads,)


@final
@dataclass(frozen=True, kw_only=True)
class ReadAttention(TokenAttention):
    """One layer, whose W_out another module may apply."""

    output: nn.Linear | None  # W_out with its bias; None if another module applies it
    wrap: Callable[[nn.Module], nn.Module]  # Gives a module from tokens to tokens the call signature of this layer
    gated: GatedPosition | None = None  # What is mixed with the attention by content


def read_attention(attention: nn.Module) -> ReadAttention:
    """Reads a layer by its class, or raises UnsupportedModelError with the reason alone."""
    read = _READERS.get(full_name(type(attention)))
    if read is None:
        raise UnsupportedModelError("attention of its class is not replaced")
    return read(attention)


def _timm(attention: nn.Module) -> ReadAttention:
    return _from_native(read_timm_attention(("",), attention), TimmAttention)


def _convit(attention: nn.Module) -> ReadAttention:
    query, key, value = split_linear(require_linear(attention, "qkv"), 3)
    return _from_convit(attention, query, key, value, None)


def _gated(attention: nn.Module) -> ReadAttention:
    query, key = split_linear(require_linear(attention, "qk"), 2)
    value, position = require_linear(attention, "v"), require_linear(attention, "pos_proj")
    gates = attention.gating_param
    assert isinstance(gates, nn.Parameter)
    return _from_convit(attention, query, key, value, GatedPosition(position, gates))


def _from_convit(
    attention: nn.Module, query: nn.Linear, key: nn.Linear, value: nn.Linear, gated: GatedPosition | None
) -> ReadAttention:
    proj = require_linear(attention, "proj")
    return ReadAttention(
        heads=int(attention.num_heads),  # type: ignore[arg-type]
        query=query,
        key=key,
        value=value,
        output=linear(proj.weight, proj.bias, like=proj),
        dropout=float(attention.attn_drop.p),  # type: ignore[union-attr, arg-type]
        scale=float(attention.scale),  # type: ignore[arg-type]
        after=attention.proj_drop,  # type: ignore[arg-type]
        wrap=TimmAttention,
        gated=gated,
    )


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
        scale=float(attention.scaling),  # type: ignore[arg-type]
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
    out, width = attention.out_proj, attention.embed_dim
    whole = nn.Linear(width, 3 * width, device="meta")
    whole.weight, whole.bias = attention.in_proj_weight, attention.in_proj_bias
    query, key, value = split_linear(whole, 3)
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
    "timm.models.convit.GPSA": _gated,
    "timm.models.convit.MHSA": _convit,
    "transformers.models.vit.modeling_vit.ViTAttention": _transformers,
    "transformers.models.bert.modeling_bert.BertSelfAttention": _bert,
    "torch.nn.modules.activation.MultiheadAttention": _torch,
}
