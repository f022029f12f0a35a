"""Attention layers of other libraries of which heads can be replaced, read one by one, recognised by full name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from convattn.adapters.native import NativeAttention, linear
from convattn.adapters.readable import require_linear
from convattn.adapters.replacement.calls import SequenceAttention, TorchAttention
from convattn.adapters.timm import TimmAttention, read_timm_attention
from convattn.adapters.transformers import TransformersAttention, read_transformers_attention
from convattn.convert.classes import full_name
from convattn.errors import UnsupportedModelError


@dataclass(frozen=True)
class ReadAttention:
    """One layer of multi-head attention over tokens, whose W_out another module may apply."""

    heads: int  # N_h
    query: nn.Linear  # W_q with its bias, D → N_h·D_h; heads stand one after the other
    key: nn.Linear  # W_k with its bias
    value: nn.Linear  # W_v with its bias
    output: nn.Linear | None  # W_out with its bias; None if another module applies it
    query_norm: nn.Module  # What is applied to each query before the product
    key_norm: nn.Module  # What is applied to each key
    dropout: float  # Probability with which an attention weight is dropped in training
    after: nn.Module  # What follows W_out: the dropout of the output
    wrap: Callable[[nn.Module], nn.Module]  # Gives a module from tokens to tokens the call signature of this layer

    @property
    def head_width(self) -> int:
        """D_h."""
        return self.value.out_features // self.heads


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
    return ReadAttention(
        heads=native.heads,
        query=native.query,
        key=native.key,
        value=native.value,
        output=native.output,
        query_norm=native.query_norm,
        key_norm=native.key_norm,
        dropout=native.dropout,
        after=native.after,
        wrap=wrap,
    )


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
        query_norm=nn.Identity(),
        key_norm=nn.Identity(),
        dropout=float(attention.dropout.p),  # type: ignore[union-attr, arg-type]
        after=nn.Identity(),
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
        query_norm=nn.Identity(),
        key_norm=nn.Identity(),
        dropout=attention.dropout,
        after=nn.Identity(),
        wrap=TorchAttention,
    )


_READERS: dict[str, Callable[[nn.Module], ReadAttention]] = {
    "timm.layers.attention.Attention": _timm,
    "transformers.models.vit.modeling_vit.ViTAttention": _transformers,
    "transformers.models.bert.modeling_bert.BertSelfAttention": _bert,
    "torch.nn.modules.activation.MultiheadAttention": _torch,
}
