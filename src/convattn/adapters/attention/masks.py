"""Pairs of queries and keys that a mask excludes."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from convattn.adapters.attention.kernels import Kernel
from convattn.adapters.attention.layout import Layout

Allowed = Bool[Tensor, "images groups queries keys"] | None
"""Pairs that are not excluded, if that differs between images."""


def allowed_of(kernel: Kernel, given: Tensor | None, layout: Layout, sizes: Sequence[int]) -> tuple[Layout, Allowed]:
    """Adds the pairs that the kernel's mask or the mask `given` to the module leaves, unless the layout has its own.

    `sizes` are images, groups, heads, queries, keys. Masks that differ between images are returned apart.
    """
    images, groups, heads, queries, keys = sizes
    if layout.allowed is not None:
        return layout, None
    allowed = torch.ones(1, 1, 1, queries, keys, dtype=torch.bool)
    if kernel.causal:
        allowed = allowed.tril()
    mask = given if kernel.mask is None else kernel.mask
    if mask is not None and _excludes(mask):
        left = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        whole = left.broadcast_to(kernel.shape()).reshape(images, groups, heads, queries, keys)
        allowed = allowed.to(whole.device) & whole.any(2, keepdim=True)
    found = allowed.any(2).expand(-1, groups, -1, -1).cpu()
    if bool((found == found[:1]).all()):
        return layout.with_allowed(found[0]), None
    return layout, found


def _excludes(mask: Tensor) -> bool:
    """Tells whether a mask, of truth values or added to scores, excludes a pair."""
    if mask.dtype == torch.bool:
        return not bool(mask.all())
    return mask.is_floating_point() and bool(mask.min() <= torch.finfo(mask.dtype).min / 2)
