"""Hard heads: each looks at one fixed displacement, so attention is a convolution and is computed as one.

With A_h[q, k] = 1 where k = q + Δ_h and 0 elsewhere, y[q] = Σ_h W_h x[q + Δ_h] (`docs/theory.md` §3): the heads are the
taps of a kernel, and W_h is its weight at the tap Δ_h.
"""

from convattn.functional.shift.attention import Shifts, find_shifts, shift_attention
from convattn.functional.shift.convolution import (
    ShiftConvolution,
    WindowConvolution,
    shift_convolution,
    window_convolution,
)
from convattn.functional.shift.strided import take_every

__all__ = [
    "ShiftConvolution",
    "Shifts",
    "WindowConvolution",
    "find_shifts",
    "shift_attention",
    "shift_convolution",
    "take_every",
    "window_convolution",
]
