"""Attention of other libraries: read with its layout, started as convolutions, run as convolutions where it is one."""

from convattn.adapters.initialisation import convolutional_init
from convattn.adapters.patch_attention import GatedPatchAttention, PatchAttention
from convattn.adapters.replacement import ConvolvedAttention, KernelMeans, random_heads, replace_convolutional_heads

__all__ = [
    "ConvolvedAttention",
    "GatedPatchAttention",
    "KernelMeans",
    "PatchAttention",
    "convolutional_init",
    "random_heads",
    "replace_convolutional_heads",
]
