"""Heads of this library and of others: read, measured, reported, replaced and initialised."""

from convattn.heads.analysis import analyze
from convattn.heads.controls import CONTROLS
from convattn.heads.convolved_attention import KernelMeans
from convattn.heads.head_snapshots import HeadSnapshot, read_heads
from convattn.heads.initialise import init_heads_
from convattn.heads.mean_maps import attention_maps, mean_maps
from convattn.heads.replace import replace_heads
from convattn.heads.replaceable_heads import random_heads

__all__ = [
    "CONTROLS",
    "HeadSnapshot",
    "KernelMeans",
    "analyze",
    "attention_maps",
    "init_heads_",
    "mean_maps",
    "random_heads",
    "read_heads",
    "replace_heads",
]
