"""Measures depthwise convolutions of torch on a CPU, contiguous and channels-last, over kernels and padding.

    python -m evidence.large_kernels            # some minutes; a row for each kernel and padding

In the contiguous layout a convolution that pads more than six columns on a side (four without AVX-512) leaves the fast
code of oneDNN. Padding the images beforehand, or channels-last, avoids it. Conversions of the layout count.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import time_rounds
from convattn.lab.tables import markdown_table
from evidence.results import new_parser

CHANNELS = 128
PIXELS = 56
KERNELS = (3, 5, 7, 9, 11, 13, 15, 21, 31)
PADDINGS = (0, 4, 5, 6, 7)


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


WAYS = {
    "contiguous, ms": contiguous,
    "channels-last, ms": channels_last,
    "padded before, ms": padded_before,
}


@torch.no_grad()
def main() -> None:
    """Prints a row for each kernel and padding, with the fastest of the rounds."""
    rounds = new_parser(__doc__, "--rounds").parse_args().rounds
    torch.set_num_threads(1)
    x = torch.randn(1, CHANNELS, PIXELS, PIXELS)
    rows = []
    for size in KERNELS:
        kernel = torch.randn(CHANNELS, 1, size, size)
        for padding in sorted({*PADDINGS, size // 2}):
            calls = {name: partial(way, x, kernel, padding) for name, way in WAYS.items()}
            seconds = time_rounds(calls, rounds=rounds).values()
            times = [f"{1000 * min(own):.2f}" for own in seconds]
            rows.append([f"{size} x {size}", str(padding), *times])
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{capability}, 1 thread, 1 x {CHANNELS} x {PIXELS} x {PIXELS}")
    print(markdown_table(["kernel", "padding", *WAYS], rows))


if __name__ == "__main__":
    main()
