"""What autocast does to the numbers of a product."""

import torch
from torch import Tensor


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
    device = x.device.type
    if x.dtype == torch.float64 or x.is_meta or not torch.is_autocast_enabled(device):
        return x.dtype
    return torch.get_autocast_dtype(device)
