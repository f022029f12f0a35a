"""What torch's modes and devices change: autocast, compilers, traces, torch.func, further derivatives, memory.

The fast paths compute in place, part by part, with gradients written by hand. Torch can differentiate a gradient again,
push tangents forward or map over a batch only through its own operations. So each of these paths has a second form in
such operations, which is used only when it is needed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd.forward_ad import unpack_dual

from convattn.errors import ArgumentError

_PRECISIONS = (
    ("generic", "all"),
    ("cuda", "all"),
    ("mkldnn", "all"),
    ("cuda", "matmul"),
    ("cuda", "conv"),
    ("cuda", "rnn"),
    ("mkldnn", "matmul"),
    ("mkldnn", "conv"),
    ("mkldnn", "rnn"),
)
"""Torch's settings `fp32_precision`. One that is "none" is read as the more general one above it."""

PIECE_BYTES = 1 << 22
"""Bytes of scores, weights or means that are worked on at a time on a CPU."""

KEPT_BYTES = 1 << 26
"""Bytes of all weights, or means, of a call up to which they are kept: a step with content takes 0.8 to 0.9 of the time
on a CPU, one with transforms 0.7."""

_SHARE = 64
"""Share of a GPU's memory that these may take: 1.2 GiB of 80, so that one image or a hundred are one piece."""

FLASH_WIDTH = 256
"""Width of queries, keys and values up to which torch's flash kernel takes them."""


def is_accelerator(device: torch.device) -> bool:
    """Tells whether kernels run beside the program, as on a GPU; "meta" has shapes alone."""
    return device.type not in ("cpu", "meta")


def autocasts(device: torch.device) -> bool:
    """Tells whether autocast is on for a device."""
    # first whether it is on anywhere, which takes a tenth of the time
    some = torch._C._is_any_autocast_enabled()
    kind = device.type
    return some and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Returns a context in which autocast is off for a device."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


@contextmanager
def plain_float32() -> Iterator[None]:
    """Computes float32 in full inside the block: not in TensorFloat-32 on CUDA, not in bfloat16 on a CPU.

    Torch has older flags (`allow_tf32`, `set_float32_matmul_precision`) and newer settings (`fp32_precision`); the
    newer ones decide, and the older ones raise where they say something else. So both are turned off, and each comes
    back as it was. They hold for all threads.

    Example:
        >>> with plain_float32():
        ...     torch.backends.cudnn.allow_tf32, torch.backends.cudnn.conv.fp32_precision
        (False, 'none')
    """
    read = torch._C._get_fp32_precision_getter
    write = torch._C._set_fp32_precision_setter
    settings = {}
    for backend, operation in _PRECISIONS:
        settings[backend, operation] = read(backend, operation)
        write(backend, operation, "none")  # so that the next ones are read as they are
    products = torch.get_float32_matmul_precision()
    try:
        convolutions = torch._C._get_cudnn_allow_tf32()
    except RuntimeError:  # the flag is on
        convolutions = True
    torch.set_float32_matmul_precision("highest")
    torch._C._set_cudnn_allow_tf32(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch._C._set_cudnn_allow_tf32(convolutions)
        for (backend, operation), precision in settings.items():
            write(backend, operation, precision)


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
    return autocast_dtype(x.dtype, x.device)


def autocast_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Returns the dtype in which numbers of a dtype on a device are multiplied."""
    if dtype == torch.float64 or not autocasts(device):
        return dtype
    return torch.get_autocast_dtype(device.type)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which numbers of a dtype are summed, and scores computed: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def needs_own_operations(*tensors: Tensor) -> bool:
    """Tells whether torch must see its own operations: in `torch.func`, in a trace, or if a tensor has a tangent."""
    # A graph that is being compiled consists of torch's own operations anyway.
    if torch.compiler.is_compiling():
        return False
    return (
        torch._C._are_functorch_transforms_active()  # what torch.autograd.Function.apply itself asks
        or torch._C._is_tracing()
        or any(is_legacy_batchedtensor(t) or unpack_dual(t).tangent is not None for t in tensors)
    )


def can_be_read(tensor: Tensor) -> bool:
    """Tells whether a computation may depend on the values of a tensor."""
    # Not on the device "meta", while compiling, or under `torch.vmap`, where each member of the batch has other values.
    if tensor.is_meta or torch.compiler.is_compiling():
        return False
    # vmap hides the axis it maps over
    return torch.func.debug_unwrap(tensor, recurse=True).ndim == tensor.ndim


def fixed_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the spatial sizes of images, which exports and traces fix here because scores depend on them.

    Raises ArgumentError if an exporter leaves one open.
    """
    exports = torch.compiler.is_exporting()
    if not exports and not torch._C._is_tracing():
        return tuple(sizes)
    fixed = tuple(map(int, sizes))
    if exports:
        from torch.fx.experimental.symbolic_shapes import is_concrete_int

        for axis, size in enumerate(sizes):
            if not is_concrete_int(size):  # as the exporter to ONNX leaves symbols that were read
                raise ArgumentError(
                    f"dynamic_shapes must leave out spatial sizes, on which attention weights depend, but leaves axis"
                    f" {axis} of them open"
                )
    return fixed


def backward_to_differentiate(
    compute: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    wanted: Sequence[bool],
    upstream: Tensor,
) -> list[Tensor | None]:
    """Computes gradients through `compute`, None if not wanted, that can be differentiated again to any order."""
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        # if one is made of another, no gradient goes that way
        apart = [tensor.view_as(tensor) for tensor in inputs]
        y = compute(*apart)
        chosen = [tensor for tensor, want in zip(apart, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(y, chosen, upstream, create_graph=further))
    return [next(found) if want else None for want in wanted]


def computed_again(compute: Callable[..., Tensor], *, draws: bool = False) -> Callable[..., Tensor]:
    """Returns what computes the same and keeps the inputs alone: the gradient computes it again, with autocast off.

    What draws random numbers draws the same ones again.
    """
    return partial(_Again.apply, compute, draws)


class _Again(torch.autograd.Function):
    """A checkpoint whose forward pass records nothing; derivatives are of every order."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], draws: bool, *inputs: Tensor) -> Tensor:
        ctx.compute = compute
        # those of the process, which another thread may be using: left alone where nothing is drawn
        ctx.random_numbers = torch.get_rng_state() if draws else None
        ctx.save_for_backward(*inputs)
        return compute(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        needed, draws = ctx.needs_input_grad[2:], ctx.random_numbers is not None
        kept = torch.random.fork_rng(devices=()) if draws else nullcontext()
        with without_autocast(gradient.device), kept:
            if draws:
                torch.set_rng_state(ctx.random_numbers)
            found = backward_to_differentiate(ctx.compute, ctx.saved_tensors, needed, gradient)
        return None, None, *found


def missing_channels(width: int, device: torch.device) -> int:
    """Returns how many zero channels torch's attention kernel lacks to be fast.

    On a CPU it takes up to 1.4 times as long at widths that are no multiple of four. The fast kernels of a GPU take
    multiples of eight alone.
    """
    return -width % (8 if is_accelerator(device) else 4)


def piece_bytes(device: torch.device) -> int:
    """Returns how many bytes of scores, weights or means a call has in memory at a time."""
    if device.type == "cpu":
        return PIECE_BYTES
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // _SHARE
    return 1 << 30


def fitting(device: torch.device, each: int) -> int:
    """Returns how many things of so many bytes each are worked on at a time, at least one."""
    return max(1, piece_bytes(device) // max(1, each))


def chunks(length: int, size: int) -> list[slice]:
    """Cuts positions into chunks of a size; the last may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
