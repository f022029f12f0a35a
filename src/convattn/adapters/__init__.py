"""Vision transformers of other libraries, rebuilt with the layers of this one, without importing those libraries."""

from convattn.adapters.initialisation import convolutional_init
from convattn.adapters.patch_attention import GatedPatchAttention, PatchAttention

__all__ = ["GatedPatchAttention", "PatchAttention", "convolutional_init"]
