"""What autocast does to the numbers of a product, on devices that have it: "meta" does not."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocasts(device: torch.device) -> bool:
    """Tells whether autocast is on for a device."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Returns a context in which autocast is off for a device."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def product_dtype(x: Tensor) -> torch.dtype:
    """Returns the dtype in which products of a tensor are taken: under autocast its own, but not of float64.

    Args:
        x: Floating-point numbers.

    Returns:
        The dtype of autocast where it is enabled on the tensor's device, else that of the tensor.

    Example:
        >>> with torch.autocast("cpu"):
        ...     product_dtype(torch.zeros(1)), product_dtype(torch.zeros(1, dtype=torch.float64))
        (torch.bfloat16, torch.float64)
    """
    if x.dtype == torch.float64 or not autocasts(x.device):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)
