"""Attention weights with their layout, from layers of this library and of others, which are not imported."""

from convattn.adapters.attention.layout import (
    OUTSIDE,
    AttentionCall,
    AttentionModule,
    Layout,
    global_layout,
    grouped_layout,
)
from convattn.adapters.attention.registry import register_attention
from convattn.adapters.attention.seen import Seen
from convattn.adapters.attention.survey import attention_layers
from convattn.adapters.attention.watch import watch

__all__ = [
    "OUTSIDE",
    "AttentionCall",
    "AttentionModule",
    "Layout",
    "Seen",
    "attention_layers",
    "global_layout",
    "grouped_layout",
    "register_attention",
    "watch",
]
