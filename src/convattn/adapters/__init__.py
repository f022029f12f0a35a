"""Vision transformers of other libraries, read and rebuilt with the layers of this one; nothing of them is imported."""

from convattn.adapters.convolutional_init import convolutional_init
from convattn.adapters.patch_attention import GatedPatchAttention, PatchAttention

__all__ = ["GatedPatchAttention", "PatchAttention", "convolutional_init"]
