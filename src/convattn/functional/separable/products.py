"""The attention as plain products, for compilers, other precisions and further derivatives to work on."""

from collections.abc import Sequence

from einops import einsum
from torch import Tensor

from convattn.functional.reference import combine_heads
from convattn.functional.separable.values_first import AXES


def attention_as_products(weights: Sequence[Tensor], keys: Tensor, maps: Tensor, groups: int) -> Tensor:
    """Computes the attention as plain products, for compilers, autocast and further derivatives to work on."""
    names = AXES[-len(weights) :]
    mixed, before = keys, "batch channels " + " ".join(names)
    for name, weight in zip(names, weights, strict=True):
        after = "batch heads channels " + before.split("channels ")[1].replace(name, "queries")
        mixed = einsum(weight, mixed, f"heads queries {name}, {before} -> {after}")
        before = after.replace("queries", f"queries_{name}")
    return combine_heads(mixed, maps, groups)
