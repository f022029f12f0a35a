"""Derivatives that hand-written gradients do not give: higher orders, forward mode, torch's function transforms.

The fast paths compute in place, part by part, with gradients written by hand. Torch can differentiate a gradient again,
push tangents forward or map over a batch only through its own operations. So each of these paths has a second form in
such operations, which is used only when it is needed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd.forward_ad import unpack_dual


def needs_own_operations(*tensors: Tensor) -> bool:
    """Tells whether torch must see its own operations: in `torch.func`, or because a tensor has a tangent."""
    # A graph that is being compiled consists of torch's own operations anyway.
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active():  # what torch.autograd.Function.apply itself asks
        return True
    return any(is_legacy_batchedtensor(t) or unpack_dual(t).tangent is not None for t in tensors)


def backward_to_differentiate(
    compute: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool], upstream: Tensor
) -> list[Tensor | None]:
    """Computes gradients through `compute`, None if not wanted, that can be differentiated again to any order."""
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        apart = [tensor.view_as(tensor) for tensor in inputs]  # if one is made of another, no gradient goes that way
        y = compute(*apart)
        chosen = [tensor for tensor, want in zip(apart, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(y, chosen, upstream, create_graph=further))
    return [next(found) if want else None for want in wanted]
