"""Every kind of module on the device beside the CPU, and the kernel of torch that takes the content path's tensors."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from convattn import Content, RelativeAttention2d
from evidence.card.rows import Stage, use_tf32

SIZES = ((400, 400, 9), (192, 64, 3), (64, 16, 4), (64, 7, 9))
"""Channels, width of queries and keys, and heads of layers with content."""

_TINY = 6
"""A tiny stage takes one of so many kinds."""


def run(stage: Stage) -> None:
    """Computes every kind of module of the tests of devices, then asks which kernels run."""
    from tests.devices.cases import cases

    use_tf32(False)
    for number, (name, make, compute, x) in enumerate(cases()):
        if not stage.tiny or number % _TINY == 0:
            stage.case(name, partial(beside_cpu, stage.device, make, compute, x))
    for channels, width, heads in SIZES:
        for dtype in (torch.float32, torch.bfloat16):
            name = f"kernel, {channels} channels, {heads} heads of width {width}"
            found = partial(kernel_of_content, stage.device, channels, width, heads, dtype)
            stage.case(name, found, precision=str(dtype).removeprefix("torch."))


def beside_cpu(
    device: torch.device,
    make: Callable[[], nn.Module],
    compute: Callable[[nn.Module, Tensor], Tensor],
    x: Tensor,
) -> dict[str, float]:
    """Computes on both devices, and returns the largest difference and the largest number."""
    torch.manual_seed(0)
    module = make()
    expected = compute(module, x)
    found = compute(copy.deepcopy(module).to(device), x.to(device)).cpu()
    difference = (found - expected).abs().max().item()
    return {"difference": difference, "size": expected.abs().max().item()}


class Kernels(TorchFunctionMode):
    """Notes which kernel torch chooses for each call of its fused attention inside the block."""

    def __init__(self) -> None:
        """Has seen no call."""
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls a function of torch."""
        kwargs = kwargs or {}
        if func is nn.functional.scaled_dot_product_attention:
            number = torch._fused_sdp_choice(*args, **kwargs)
            query, _, value = args[:3]
            self.calls.append(
                {
                    "kernel": SDPBackend(number).name.lower(),
                    "query": list(query.shape),
                    "value": list(value.shape),
                    "dtype": str(query.dtype).removeprefix("torch."),
                }
            )
        return func(*args, **kwargs)


def kernel_of_content(
    device: torch.device, channels: int, width: int, heads: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Runs a layer with content and positions, and returns the first call of torch's fused attention."""
    content = Content(key_width=width)
    options = {"num_heads": heads, "encoding": "quadratic", "content": content}
    layer = RelativeAttention2d(channels, channels, **options, device=device, dtype=dtype)
    x = torch.randn(2, channels, 16, 16, device=device, dtype=dtype)
    with torch.no_grad(), Kernels() as kernels:
        layer(x)
    return kernels.calls[0] if kernels.calls else {"kernel": "none: explicit weights"}
