"""Attention on grids as pure functions: the readable reference, and the faster paths that are held against it."""

from convattn.functional.content import content_scores, gated_weights
from convattn.functional.content_attention import ContentMaps, PositionTables, content_attention
from convattn.functional.dense import dense_attention
from convattn.functional.keys import pad_keys, query_pixels
from convattn.functional.reference import attend, attention_weights, displacement_scores
from convattn.functional.separable import separable_attention
from convattn.functional.values import combine_heads

__all__ = [
    "ContentMaps",
    "PositionTables",
    "attend",
    "attention_weights",
    "combine_heads",
    "content_attention",
    "content_scores",
    "dense_attention",
    "displacement_scores",
    "gated_weights",
    "pad_keys",
    "query_pixels",
    "separable_attention",
]
