"""Heads that attend to one displacement each: the taps of a kernel."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.convert.bounds import weight_of
from convattn.convert.windows import box_window, own_window, sized_windows
from convattn.encodings import AxisAdditiveEncoding, Encoding, Quadratic, Shift
from convattn.functional import find_shifts
from convattn.functional.torch_modes import without_autocast
from convattn.grid import Axis, Geometry, Window
from convattn.layers import RelativeAttention

_HARD = 1 / 8
"""Attention that a hard head may give to other pixels, as a share of the eps of the weights' dtype."""

_FARTHEST = 1 << 20
"""Displacement in pixels beyond which float32 does not tell neighbouring pixels apart."""


class HardHeads(NamedTuple):
    """Heads that attend to one displacement each; where it leads beyond the keys, to the nearest key."""

    # From the query to the pixel, one integer per axis for each head
    displacements: tuple[tuple[int, ...], ...]
    leak: float  # Largest share of attention at other pixels
    any_size: bool  # Whether this holds for images of any size, or only for the size examined

    def window(self, geometry: Geometry, taps: tuple[int, ...] | None) -> Window | None:
        """Chooses a window that contains the displacements of all heads; None if no torch convolution has one.

        Where `taps` is None this is the layer's own window if it contains them, else the smallest one without gaps.
        """
        windows = [own_window(geometry)] if taps is None else sized_windows(geometry, taps)
        for window in windows:
            if window is not None and self._are_taps_of(window):
                return window
        if taps is not None:
            return None
        along = list(zip(*self.displacements, strict=True))
        low = [min(one) for one in along]
        high = [max(one) for one in along]
        return box_window(geometry, low, high)

    def kernel(
        self, window: Window, maps: Float[Tensor, "heads outputs channels"]
    ) -> Float[Tensor, "outputs channels *taps"]:
        """Returns the kernel: each head's matrix at its tap, summed where heads share a tap."""
        kernel = maps.new_zeros(*maps.shape[1:], *window.taps)
        for displacement, matrix in zip(self.displacements, maps, strict=True):
            along = zip(displacement, window.first, window.steps, strict=True)
            tap = [(d - low) // step for d, low, step in along]
            kernel[(..., *tap)] += matrix
        return kernel

    def seen(self, axes: tuple[Axis, ...]) -> bool:
        """Tells whether each displacement leads from some query to a key."""
        for along, axis in zip(zip(*self.displacements, strict=True), axes, strict=True):
            if min(along) < axis.lowest or max(along) > axis.highest:
                return False
        return True

    def _are_taps_of(self, window: Window) -> bool:
        for displacement in self.displacements:
            along = zip(displacement, window.first, window.last, window.steps, strict=True)
            for d, first, last, step in along:
                if not first <= d <= last or (d - first) % step:
                    return False
        return True

    def are_padded_by(self, geometry: Geometry, mode: str) -> bool:
        """Tells whether padding in `mode` holds the same beyond the keys as the nearest key, where heads lead there."""
        sides = self._sides_beyond_the_keys(geometry)
        if not sides:
            return True
        if any(pixels < 0 for pair in geometry.padding for pixels in pair):
            return False
        if mode == "replicate":
            return not geometry.spreads
        return mode == "zeros" and all(geometry.padding[axis][end] > 0 for axis, end in sides)

    def _sides_beyond_the_keys(self, geometry: Geometry) -> list[tuple[int, int]]:
        """Lists (axis, 0 before or 1 after) where a head of some query leads beyond the keys."""
        sides = []
        for axis, along in enumerate(zip(*self.displacements, strict=True)):
            anchor = geometry.anchor[axis]
            last = geometry.dilation[axis] * (geometry.kernel_size[axis] - 1) - anchor
            if min(along) < -anchor:
                sides.append((axis, 0))
            if max(along) > last:
                sides.append((axis, 1))
        return sides


def find_hard_heads(
    layer: RelativeAttention, axes: tuple[Axis, ...], mode: str
) -> HardHeads | None:
    """Returns the heads if all are hard and padding in `mode` gives the same as attention beyond the keys, else None.

    Displacements that the encoding itself determines hold for images of every size. Otherwise, or if one of them leads
    to no key at these sizes, the attention is examined, and the result holds for these sizes only.
    """
    weight = weight_of(layer)
    heads = fixed_heads(layer.encoding, weight.dtype)
    if heads is None or not heads.seen(axes):
        heads = _heads_at_one_size(layer.encoding, axes, weight)
    if heads is None or not heads.are_padded_by(layer.geometry, mode):
        return None
    return heads


def _heads_at_one_size(
    encoding: Encoding, axes: tuple[Axis, ...], weight: Tensor
) -> HardHeads | None:
    if not isinstance(encoding, AxisAdditiveEncoding):
        return None
    with torch.no_grad(), without_autocast(weight.device):
        tables = encoding.axis_tables(axes, torch.float64, weight.device)
    shifts = find_shifts(tables, axes, torch.finfo(weight.dtype).eps * _HARD)
    return None if shifts is None else HardHeads(shifts.offsets, shifts.leak, any_size=False)


def fixed_heads(encoding: Encoding, dtype: torch.dtype) -> HardHeads | None:
    """Returns heads that are hard for images of any size, as the encoding alone shows, or None.

    A quadratic head f ≤ ½ from a pixel along an axis gives its other pixels, at distances m on both sides, at most
    `Σ_{m≥1} e^{−α(m² − 2mf)} + e^{−α(m² + 2mf)}` of what that pixel has. Beyond the keys the nearest key takes its
    place, and the others are farther still. With m² ≥ 3m − 2 the sums are at most geometric ones. The leak must stay
    below the rounding of `dtype`, that of the weights.
    """
    if isinstance(encoding, Shift):
        return HardHeads(encoding.displacements, 0.0, any_size=True)
    if not isinstance(encoding, Quadratic):
        return None
    centres = encoding.centres.detach().double().cpu()
    alpha = encoding.sharpness.detach().double().cpu()[:, None]
    nearest = centres.round()
    away = (centres - nearest).abs()
    nearest_of_near = torch.exp(-alpha * (1 - 2 * away))
    nearest_of_far = torch.exp(-alpha * (1 + 2 * away))
    near = nearest_of_near / -torch.expm1(-alpha * (3 - 2 * away))
    far = nearest_of_far / -torch.expm1(-3 * alpha)
    leak = (near + far).sum(1).max().item()
    is_hard = leak <= torch.finfo(dtype).eps * _HARD
    if not is_hard or not nearest.abs().max().item() <= _FARTHEST:
        return None
    displacements = tuple(tuple(int(d) for d in head) for head in nearest.tolist())
    return HardHeads(displacements, leak, any_size=True)
