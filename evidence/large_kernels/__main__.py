"""Measures depthwise convolutions of torch on a CPU, contiguous and channels-last, over kernels and padding.

    python -m evidence.large_kernels            # some minutes; a row for each kernel and padding

In the contiguous layout a convolution that pads more than six columns on a side (four without AVX-512) leaves the fast
code of oneDNN. Padding the images beforehand, or channels-last, avoids it. Conversions of the layout count.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

CHANNELS = 128
PIXELS = 56
KERNELS = (3, 5, 7, 9, 11, 13, 15, 21, 31)
PADDINGS = (0, 4, 5, 6, 7)
ROUNDS = 5


def contiguous(x: Tensor, kernel: Tensor, padding: int) -> Tensor:
    """Convolves in torch's default layout."""
    return functional.conv2d(x, kernel, padding=padding, groups=CHANNELS)


def channels_last(x: Tensor, kernel: Tensor, padding: int) -> Tensor:
    """Convolves with channels innermost in memory, and converts the result back."""
    images = x.contiguous(memory_format=torch.channels_last)
    y = functional.conv2d(images, kernel, padding=padding, groups=CHANNELS)
    return y.contiguous()


def padded_before(x: Tensor, kernel: Tensor, padding: int) -> Tensor:
    """Pads the images, then convolves without padding in torch's default layout."""
    wide = functional.pad(x, [padding] * 4)
    return functional.conv2d(wide, kernel, groups=CHANNELS)


def milliseconds(call: Callable[[], Tensor]) -> float:
    """Returns the time of the fastest of several calls."""
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def main() -> None:
    """Prints a row for each kernel and padding."""
    torch.set_num_threads(1)
    print(
        f"{torch.backends.cpu.get_cpu_capability()}, 1 thread, 1 x {CHANNELS} x {PIXELS} x {PIXELS}"
    )
    print("| kernel | padding | contiguous, ms | channels-last, ms | padded before, ms |")
    print("|---|---|---|---|---|")
    x = torch.randn(1, CHANNELS, PIXELS, PIXELS)
    for size in KERNELS:
        kernel = torch.randn(CHANNELS, 1, size, size)
        same = size // 2
        for padding in sorted({*PADDINGS, same}):
            cells = [f"{size} x {size}", str(padding)]
            for convolve in (contiguous, channels_last, padded_before):
                with torch.no_grad():
                    taken = milliseconds(lambda: convolve(x, kernel, padding))  # noqa: B023
                cells.append(f"{taken:.2f}")
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
