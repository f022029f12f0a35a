"""Scores that depend on the images, s = ((q + u)·k + q·Ŵr_δ)/√width + s_h(δ), and a gate between both kinds."""

from convattn.functional.content.attention import content_attention
from convattn.functional.content.flex import flex_attention
from convattn.functional.content.folding import ContentMaps, PositionTables
from convattn.functional.content.scores import content_scores, gated_weights, position_share

__all__ = [
    "ContentMaps",
    "PositionTables",
    "content_attention",
    "content_scores",
    "flex_attention",
    "gated_weights",
    "position_share",
]
