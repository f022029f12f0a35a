import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from convattn.errors import ArgumentError, ShapeError, UnknownNameError
from convattn.functional.reference import displacement_places
from convattn.grid import PADDING_MODES, Axis, Geometry, Window, axis_lists, whole_number

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@st.composite
def windows(draw):
    """Arguments of a convolution per axis, and sizes of an image, not always large enough."""
    dims = draw(st.integers(1, 3))

    def per_axis(least, most):
        return draw(st.tuples(*[st.integers(least, most)] * dims))

    options = {"kernel_size": per_axis(1, 5), "stride": per_axis(1, 4), "dilation": per_axis(1, 3)}
    return per_axis(1, 12), options | {"padding": per_axis(0, 3)}


def size_by_torch(conv, sizes):
    """Asks torch for the size of a convolution's output; None where it refuses the image or leaves no pixel."""
    try:
        y = conv.to("meta")(torch.empty(1, 1, *sizes, device="meta"))
    except RuntimeError:
        return None
    return tuple(y.shape[2:]) if y.numel() else None


def check_sizes_and_window(conv, geometry, sizes, **kind):
    """Compares sizes of outputs with torch's; returns the window that a convolution of this geometry has."""
    expected = size_by_torch(conv, sizes)
    if expected is None:
        message = r"x must have at least \d+ padded pixels along axis \d, but has \d+"
        with pytest.raises(ShapeError, match=message):
            geometry.axes(sizes)
    else:
        assert tuple(len(axis.queries) for axis in geometry.axes(sizes)) == expected
    return Window.fit(geometry, geometry.window, **kind)


@given(windows())
def test_sizes_and_the_window_are_those_of_torchs_convolution(case):
    sizes, options = case
    geometry = Geometry.parse(len(sizes), **options)
    conv = CONVOLUTIONS[len(sizes)](1, 1, **options)
    window = check_sizes_and_window(conv, geometry, sizes)
    assert (window.padding, window.output_padding) == (options["padding"], None)
    assert window.within(geometry)


@given(windows(), st.data())
def test_sizes_and_the_window_are_those_of_torchs_transposed_convolution(case, data):
    """A transposed convolution spreads the input by its stride, and pads it by what the kernel reaches beyond."""
    sizes, options = case
    steps = zip(options["stride"], options["dilation"], strict=True)
    extra = tuple(data.draw(st.integers(0, max(pair) - 1)) for pair in steps)
    conv = TRANSPOSED[len(sizes)](1, 1, **options, output_padding=extra)
    reach = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    before = [r - p for r, p in zip(reach, options["padding"], strict=True)]
    geometry = Geometry.parse(
        len(sizes),
        kernel_size=options["kernel_size"],
        dilation=options["dilation"],
        padding=[(pad, pad + more) for pad, more in zip(before, extra, strict=True)],
        input_dilation=options["stride"],
    )
    window = check_sizes_and_window(conv, geometry, sizes, transposed=True)
    assert (window.padding, window.output_padding) == (options["padding"], extra)


@given(windows())
def test_every_tap_of_every_query_is_a_key(case):
    """The first tap of the first query is the first key, and the last tap of no query is beyond the last key."""
    sizes, options = case
    geometry = Geometry.parse(len(sizes), **options)
    try:
        axes = geometry.axes(sizes)
    except ShapeError:
        return
    taps = geometry.taps()
    indices = torch.ones(options["kernel_size"]).nonzero()
    placed = indices * torch.tensor(geometry.dilation) + torch.tensor(taps[0])
    assert [list(tap) for tap in taps] == placed.tolist()
    for number, axis in enumerate(axes):
        places = {tap[number] + query for tap in taps for query in axis.queries}
        assert min(places) == 0
        assert max(places) < axis.keys
        assert axis.keys - max(places) <= options["stride"][number], "one more query would fit"
        assert axis.queries.step == options["stride"][number]


@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize(
    ("kernel_size", "dilation", "pair"),
    [(3, 1, (1, 1)), (4, 1, (1, 2)), (2, 3, (1, 2)), (1, 2, (0, 0))],
)
def test_same_padding_keeps_the_size_and_adds_the_odd_pixel_behind(
    kernel_size, dilation, pair, mode
):
    geometry = Geometry.parse(
        2, kernel_size=kernel_size, dilation=dilation, padding="same", padding_mode=mode
    )
    assert geometry.padding == (pair, pair)
    assert [len(axis.queries) for axis in geometry.axes((7, 11))] == [7, 11]


@pytest.mark.parametrize(
    ("kernel_size", "displacements"), [(1, [0]), (2, [0, 1]), (3, [-1, 0, 1]), (4, [-1, 0, 1, 2])]
)
def test_queries_stand_at_the_middle_tap_of_even_windows_at_the_one_before(
    kernel_size, displacements
):
    geometry = Geometry.parse(1, kernel_size=kernel_size)
    assert [tap for (tap,) in geometry.taps()] == displacements
    wide = Geometry.parse(1, kernel_size=kernel_size, dilation=3)
    assert [tap for (tap,) in wide.taps()] == [3 * displacement for displacement in displacements]


@given(st.integers(0, 5), st.integers(1, 7), st.integers(1, 4), st.integers(1, 13))
def test_index_finds_the_displacement_of_every_query_and_key(first, count, step, keys):
    axis = Axis(range(first, first + step * count, step), keys)
    displacements, index = axis.displacements(), displacement_places((axis,))
    assert index.shape == (count, keys)
    expected = [[key - query for key in range(keys)] for query in axis.queries]
    assert displacements[index].tolist() == expected
    assert (axis.lowest, axis.highest) == (min(map(min, expected)), max(map(max, expected)))
    assert displacements.tolist() == list(range(axis.lowest, axis.highest + 1))


def test_geometry_without_padding_or_spread_keeps_the_grid():
    assert Geometry.parse(2, kernel_size=3, stride=2).keeps_grid
    assert not Geometry.parse(2, padding=[(0, 0), (0, 1)]).keeps_grid
    assert not Geometry.parse(2, input_dilation=(1, 2)).keeps_grid


def test_one_number_serves_all_axes_and_words_are_read():
    assert Geometry.parse(2, kernel_size=3, padding=1) == Geometry.parse(
        2, kernel_size=[3, 3], padding=[(1, 1), (1, 1)]
    )
    assert Geometry.parse(3, padding="valid") == Geometry.parse(3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *(
            ({name: 0}, ArgumentError, f"{name} must be an integer of at least 1, or 2 of them")
            for name in ("stride", "dilation", "input_dilation")
        ),
        ({"stride": "2"}, ArgumentError, "stride must be .* but is '2'"),
        (
            {"kernel_size": 0},
            ArgumentError,
            "kernel_size must be an integer of at least 1, or 2 of them, but is 0",
        ),
        (
            {"kernel_size": (3, 3, 3)},
            ArgumentError,
            "kernel_size must be an integer of at least 1, or 2 of them",
        ),
        (
            {"stride": (1, 0)},
            ArgumentError,
            r"stride must be an integer of at least 1, .* but is \(1, 0\)",
        ),
        (
            {"padding": -1},
            ArgumentError,
            "padding must be an integer of at least 0, or 2 of them, but is -1",
        ),
        (
            {"padding": (1, 1, 1)},
            ArgumentError,
            r"padding must be an integer of at least 0, .* but is \(1, 1, 1\)",
        ),
        (
            {"padding": ()},
            ArgumentError,
            r"padding must be an integer of at least 0, .* but is \(\)",
        ),
        (
            {"padding": [(1, 1)]},
            ArgumentError,
            r"padding must be 2 pairs \(before, after\) of integers, but is",
        ),
        ({"padding": [(1, 1), (1, 1, 1)]}, ArgumentError, "padding must be 2 pairs"),
        ({"padding": [(1, 1), (1, 0.5)]}, ArgumentError, "padding must be 2 pairs"),
        ({"padding": "sam"}, UnknownNameError, "unknown padding 'sam': did you mean 'same'"),
        (
            {"padding_mode": "zero"},
            UnknownNameError,
            "unknown padding_mode 'zero': did you mean 'zeros'.*Known: circular, reflect, replicate, zeros",
        ),
        (
            {"padding": "same", "stride": 2},
            ArgumentError,
            'stride must be all 1 with padding="same", but is 2',
        ),
    ],
)
def test_wrong_arguments_are_refused(options, error, message, without_type_checks):
    with pytest.raises(error, match=message):
        Geometry.parse(2, **options)


@pytest.mark.parametrize("value", [0, -1, 2.0, "2", True, None, (2,)])
def test_what_is_no_whole_number_is_refused(value, without_type_checks):
    with pytest.raises(ArgumentError, match="groups must be an integer of at least 1, but is"):
        whole_number("groups", value)


def test_lists_are_read_per_axis():
    assert axis_lists("stride", [1, 2], 2, least=1) == (1, 2)
    assert axis_lists("padding", 0, 1, least=0) == (0,)


def test_integers_of_numpy_are_integers():
    assert whole_number("groups", np.int64(2)) == 2
    assert (
        axis_lists("stride", np.uint8(2), 2, least=1)
        == axis_lists("stride", [np.int32(2), 2], 2, least=1)
        == (2, 2)
    )
    for odd in (True, np.True_):
        with pytest.raises(ArgumentError, match="groups must be an integer of at least 1, but is"):
            whole_number("groups", odd)


@pytest.mark.parametrize(
    ("options", "first", "taps", "fits"),
    [
        ({}, -1, 3, True),
        ({}, -1, 2, False),  # one output too many
        ({"padding": 1, "kernel_size": 3}, 2, 1, False),  # would cut off pixels
        ({"stride": 2}, 0, 2, False),  # for images of an odd size
    ],
)
def test_a_window_keeps_the_number_of_outputs(options, first, taps, fits):
    window = Window.fit(Geometry.parse(1, **options), (range(first, first + taps),))
    assert (window is not None) == fits


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"padding": 1, "kernel_size": 3, "padding_mode": "reflect"},
    ],
)
def test_transposed_windows_have_no_stride_and_pad_with_zeros(options):
    geometry = Geometry.parse(1, **options)
    assert Window.fit(geometry, (range(1),), transposed=True) is None


def test_taps_that_lead_out_of_the_keys_are_told():
    geometry = Geometry.parse(1, kernel_size=3, padding=1)
    assert not Window((range(-2, 1),), (1,)).within(geometry)
    assert not Window((range(-1, 3, 3),), (1,)).within(geometry)
