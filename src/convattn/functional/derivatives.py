"""Derivatives that hand-written gradients do not give: higher orders, forward mode, torch's function transforms.

The quick paths work in place, piece by piece, and their gradients are written by hand. Torch can differentiate a
gradient again, push tangents forward or map over a batch only where it sees operations of its own. So each of these
paths has a second form in such operations, which is taken where they are needed, and only there.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd.forward_ad import unpack_dual


def needs_own_operations(*tensors: Tensor) -> bool:
    """Tells whether torch must see operations of its own: in a function transform, or where tensors have tangents.

    Args:
        *tensors: What is to be computed with.

    Returns:
        True inside `torch.func` (grad, vmap, jvp, jacrev, jacfwd, hessian), and where a tensor is dual; False in a
        graph that is being compiled, which is made of torch's own operations anyway.
    """
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active():  # what torch.autograd.Function.apply itself asks
        return True
    return any(is_legacy_batchedtensor(t) or unpack_dual(t).tangent is not None for t in tensors)


def can_be_read(tensor: Tensor) -> bool:
    """Tells whether a computation may depend on the numbers of a tensor.

    Args:
        tensor: Any tensor.

    Returns:
        False of a tensor on the device "meta", in a graph that is being compiled, and of one that `torch.vmap` maps
        over, which has other numbers for each member of the batch.

    Example:
        >>> numbers = torch.zeros(2, 3)
        >>> can_be_read(numbers), torch.vmap(lambda row: row + can_be_read(row))(numbers).any().item()
        (True, False)
    """
    if tensor.is_meta or torch.compiler.is_compiling():
        return False
    return torch.func.debug_unwrap(tensor, recurse=True).ndim == tensor.ndim  # vmap hides the axis it maps over


def backward_to_differentiate(
    compute: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool], upstream: Tensor
) -> list[Tensor | None]:
    """Carries a gradient back through a function so that the result can be differentiated again, to any order.

    Args:
        compute: The function, made of torch's own operations.
        inputs: Its arguments.
        wanted: Which of them the gradient is wanted for.
        upstream: Gradient with respect to the function's result.

    Returns:
        A gradient for each input, None where it is not wanted.
    """
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        apart = [tensor.view_as(tensor) for tensor in inputs]  # if one is made of another, no gradient goes that way
        y = compute(*apart)
        chosen = [tensor for tensor, want in zip(apart, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(y, chosen, upstream, create_graph=further))
    return [next(found) if want else None for want in wanted]
