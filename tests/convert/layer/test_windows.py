"""Windows of convolutions, seen from the queries of an attention layer."""

import pytest

from convattn.convert.hard_heads import box_window, own_window, sized_windows
from convattn.grid import Geometry


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("pair", [(0, 0), (1, 1), (0, 1), (2, 0), (-1, 1), (-2, -1)])
def test_windows_hold_what_they_should(pair, k, transposed):
    geometry = Geometry.parse(
        1, kernel_size=k, padding=[pair], dilation=2, input_dilation=3 if transposed else 1
    )
    for low, high in [(0, 0), (-3, 1), (2, 5), (-7, -6)]:
        window = box_window(geometry, [range(low, high + 1)])
        (taps,) = window.taps
        assert taps[0] <= low
        assert taps[-1] >= high
        assert window.padding[0] >= 0
    own = own_window(geometry)
    unequal = pair == (2, 0) or (
        pair == (-1, 1) and not transposed
    )  # torch adds less than a step, after the image
    outside = pair == (1, 1) and k == 1 and transposed  # torch's padding would be negative
    assert (own is None) == (unequal or outside)
    if own is not None:
        assert own.within(geometry)


def test_geometries_that_no_convolution_has():
    both = Geometry.parse(1, stride=2, input_dilation=2)
    assert own_window(both) is None
    assert box_window(both, [range(1)]) is None
    assert sized_windows(both, (1,)) == []
