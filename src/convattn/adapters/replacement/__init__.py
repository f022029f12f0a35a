"""Heads that are convolutions, run as convolutions."""

from convattn.adapters.replacement.attention import ConvolvedAttention
from convattn.adapters.replacement.choice import random_heads
from convattn.adapters.replacement.kernel_means import KernelMeans
from convattn.adapters.replacement.replace import replace_convolutional_heads

__all__ = ["ConvolvedAttention", "KernelMeans", "random_heads", "replace_convolutional_heads"]
