"""Strided convolutions of one pixel: the same function by another road, with right gradients on every processor."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from convattn.budget import Sums, assert_within_budget, roundings
from convattn.convert import network_to_attention
from convattn.functional.convolution import convolve, convolve_transposed
from convattn.models import ResNet

PLAIN = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
HANG_GUARD = 900
"""Seconds after which a process that should take a few counts as hanging."""


def images_and_kernel(transposed: bool, dims: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs, outputs = 3 * groups, 5 * groups
    kernel = (inputs, 5) if transposed else (outputs, 3)
    shapes = (2, inputs, *(7, 4, 6)[:dims]), (*kernel, *(1,) * dims), (outputs,)
    x, weights, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return x, weights, bias


def with_gradients(compute: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    """Returns the output, and the gradients of a sum in which each output has another weight."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    y = compute(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, upstream_of(y))]


def upstream_of(y: Tensor) -> Tensor:
    return torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y).to(y.dtype)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("groups", "padding"), [(1, 0), (2, 0), (1, 1)], ids=str)
@pytest.mark.parametrize(
    ("dims", "stride"), [(1, (3,)), (2, (2, 3)), (2, (1, 2)), (3, (2, 1, 3))], ids=str
)
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
def test_it_computes_what_torch_does(transposed, dims, stride, groups, padding, bias):
    x, kernel, numbers = images_and_kernel(transposed, dims, groups)
    tensors = (x, kernel, numbers) if bias else (x, kernel)
    pads, ones, extra = (padding,) * dims, (1,) * dims, tuple(step - 1 for step in stride)

    def ours(x, kernel, numbers=None):
        if transposed:
            return convolve_transposed(x, kernel, numbers, stride, pads, extra, groups, ones)
        return convolve(x, kernel, numbers, stride, pads, ones, groups)

    def torchs(x, kernel, numbers=None):
        if transposed:
            return TRANSPOSED[dims](x, kernel, numbers, stride, pads, extra, groups)
        return PLAIN[dims](x, kernel, numbers, stride, pads, 1, groups)

    high = with_gradients(torchs, *tensors)
    for given in (tensors, [tensor.float() for tensor in tensors]):
        # not channels-last: does not meet the fault
        several = roundings(partial(with_gradients, torchs), *given)
        check(with_gradients(ours, *given), high, several)


def check(made, high, several):
    """Compares an output and gradients; that of the bias is a sum of what comes from above alone."""
    terms = upstream_of(high[0]).abs().transpose(0, 1).flatten(1)
    for place, (result, wanted, *lows) in enumerate(zip(made, high, *several, strict=True)):
        sums = Sums(terms.shape[1], terms.sum(1)) if place == 3 else None
        assert_within_budget(result, wanted, [low.to(result.dtype) for low in lows], sums=sums)


class Convolutions(TorchDispatchMode):
    """Notes the kernel's shape, the stride and the padding of every convolution that torch is asked for."""

    def __init__(self):
        super().__init__()
        self.met = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution.default:
            _, kernel, _, stride, padding = args[:5]
            self.met.append((tuple(kernel.shape), tuple(stride), tuple(padding)))
        return func(*args, **(kwargs or {}))


def at_fault(met) -> list:
    return [
        it
        for it in met
        if set(it[0][2:]) == {1} and it[0][1] < 16 and max(it[1]) > 1 and not any(it[2])
    ]


def test_without_gradients_torch_computes():
    x, kernel, _ = images_and_kernel(False, 2, 1)
    for wanted, kernels in (
        (torch.no_grad, kernel),
        (torch.enable_grad, kernel.repeat(1, 6, 1, 1)),
    ):
        images = x.repeat(1, kernels.shape[1] // 3, 1, 1)
        with wanted(), Convolutions() as noted:
            convolve(images, kernels, None, (2, 2), (0, 0), (1, 1), 1)
        assert [stride for _, stride, _ in noted.met] == [(2, 2)]


@pytest.mark.parametrize("converted", [False, True], ids=["as it is", "converted"])
def test_networks_never_meet_the_fault(converted):
    network, images = ResNet(1, width=2), torch.randn(2, 3, 16, 16)
    if converted:
        strided = nn.Conv2d(3, 5, 1, stride=2)
        spread = nn.ConvTranspose2d(5, 3, 1, stride=2, output_padding=1)
        network, _ = network_to_attention(nn.Sequential(strided, spread, network))
    with Convolutions() as noted:
        network(images).sum().backward()
    assert noted.met
    assert at_fault(noted.met) == []


def test_control_torchs_own_network_meets_the_fault():
    with Convolutions() as noted:
        nn.Conv2d(3, 5, 1, stride=2)(torch.randn(2, 3, 16, 16)).sum().backward()
    assert at_fault(noted.met)


GRADIENT = """
import sys, torch
from torch.nn.functional import conv2d, conv_transpose2d
from convattn.functional.convolution import convolve, convolve_transposed

ours, worst = sys.argv[1] == "ours", 0.0
torch.manual_seed(0)
for channels, outputs, batch, size in [(3, 8, 4, 16), (4, 8, 32, 32), (2, 16, 16, 32), (7, 8, 4, 16)] * 2:
    small = size // 2
    for inputs, compute in (
        ((batch, channels, size, size), lambda x, w: convolve(x, w, None, (2, 2), (0, 0), (1, 1), 1)
         if ours else conv2d(x, w, None, 2)),
        ((batch, outputs, small, small), lambda x, w: convolve_transposed(x, w, None, (2, 2), (0, 0), (1, 1), 1, (1, 1))
         if ours else conv_transpose2d(x, w, None, 2, 0, 1)),
    ):
        x = torch.randn(inputs).contiguous(memory_format=torch.channels_last)
        w = torch.randn(outputs, channels, 1, 1).contiguous(memory_format=torch.channels_last).requires_grad_()
        y = compute(x, w)
        (made,) = torch.autograd.grad(y, w, torch.ones_like(y) + y.detach())
        double = w.detach().double().requires_grad_()
        z = compute(x.double(), double)
        (high,) = torch.autograd.grad(z, double, torch.ones_like(z) + z.detach())
        worst = max(worst, ((made - high).abs().max() / high.abs().max()).item())
print(worst)
"""


def seen_with_avx2(which: str) -> str:
    """Runs the sizes of the fault in a process that keeps to AVX2, on one thread; says what became of it."""
    avx2 = {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
    environment = {**os.environ, **avx2, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", GRADIENT, which]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=HANG_GUARD,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "hang"
    if done.returncode < 0:
        return f"crash: signal {-done.returncode}"
    if done.returncode:  # what is written beside the memory can also show as an error of torch
        return f"error: {done.stderr.splitlines()[-1]}"
    error = float(done.stdout.splitlines()[-1])
    # A sum of n products is right to n roundings; what the fault leaves is wrong in the first digits.
    return (
        "right"
        if error <= 2 * 32 * 16 * 16 * torch.finfo(torch.float32).eps
        else f"wrong by {error:.2g}"
    )


def test_the_sizes_of_the_fault_are_right():
    assert seen_with_avx2("ours") == "right"


def test_control_torchs_own_gradient_errs():
    """Where it does not err, the repair is not needed: say so, and do not call that a failure."""
    seen = seen_with_avx2("torch")
    if seen == "right":
        pytest.skip(
            "the control: torch's own gradients of strided 1×1 convolutions are right here, also kept to AVX2"
        )
    assert seen.startswith(("crash", "error: RuntimeError", "hang", "wrong"))


NARROW = {
    "one output of two rows": ((17, 4), (5, 3), (1, 2), (0, 0), (2, 1), None),
    "a tap that sees no pixel": ((3, 2), (2, 3), (2, 3), (0, 1), (1, 1), None),
    "one row": ((1, 17), (2, 2), (3, 3), (1, 2), (2, 2), None),
    "one column, transposed": ((8, 1), (5, 3), (1, 3), (2, 1), (1, 1), (0, 2)),
    "a cropped column, transposed": ((3, 1), (3, 2), (3, 2), (0, 1), (1, 1), (2, 1)),
    "one row, transposed": ((1, 8), (2, 1), (3, 2), (1, 0), (2, 2), (2, 1)),
    "planes that no tap reaches": (
        (1, 4, 4),
        (3, 3, 2),
        (3, 2, 3),
        (1, 1, 0),
        (1, 1, 1),
        (2, 1, 2),
    ),
    "gaps between rows": ((9, 8), (2, 1), (1, 3), (0, 0), (1, 1), (0, 0)),
    "gaps of one tap": ((9, 8), (1, 1), (2, 2), (0, 0), (1, 1), (1, 1)),
    "a gap behind": ((9, 8), (3, 3), (2, 2), (0, 0), (1, 1), (1, 1)),
    "a gap behind, cropped": ((9, 8), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "gaps of a dilated kernel": ((9, 8), (2, 3), (4, 5), (0, 1), (2, 1), (0, 0)),
}
"""Sizes, taps, stride, padding, dilation, and the output padding of transposed convolutions."""


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("case", NARROW.values(), ids=NARROW)
def test_narrow_images_and_gaps_in_bfloat16_are_right(case, bias):
    """Outputs that no tap reaches are the bias, and gradients are those of torch in float64."""
    shape, taps, stride, padding, dilation, extra = case
    dims, generator = len(shape), torch.Generator().manual_seed(0)
    shapes = (2, 2, *shape), (2, 2, *taps), (2,)
    tensors = [torch.randn(size, generator=generator).bfloat16() for size in shapes[: 2 + bias]]

    def ours(x, kernel, numbers=None):
        if extra is None:
            return convolve(x, kernel, numbers, stride, padding, dilation, 1)
        return convolve_transposed(x, kernel, numbers, stride, padding, extra, 1, dilation)

    def torchs(x, kernel, numbers=None):
        if extra is None:
            return PLAIN[dims](x, kernel, numbers, stride, padding, dilation)
        return TRANSPOSED[dims](x, kernel, numbers, stride, padding, extra, 1, dilation)

    for size in (64, 256, 1024, 4096) * 3:
        torch.full((size,), 1e30)  # numbers that are read by mistake are large
    seen = with_gradients(ours, *tensors)
    exact = with_gradients(torchs, *(tensor.double() for tensor in tensors))
    moved = roundings(partial(with_gradients, torchs), *(tensor.float() for tensor in tensors))
    check(seen, exact, moved)
    with torch.no_grad():  # by other ways
        check([ours(*tensors)], exact[:1], [results[:1] for results in moved])
