import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.testing.keys import key_index, take_keys

from convattn.errors import ShapeError
from convattn.functional import pad_keys
from convattn.functional.reference import query_pixels
from convattn.grid import PADDING_MODES, Axis, Geometry


@st.composite
def padded_images(draw):
    """Sizes, paddings that may be negative and differ before and after, a mode and steps."""
    dims = draw(st.integers(1, 3))
    mode, sizes, pads, steps = draw(st.sampled_from(PADDING_MODES)), [], [], []
    for _ in range(dims):
        size, step = draw(st.integers(1, 5)), draw(st.integers(1, 3))
        keys = (size - 1) * step + 1
        most = {"reflect": keys - 1, "circular": keys}.get(mode, 4)
        pads.append((draw(st.integers(-3, most)), draw(st.integers(-3, most))))
        sizes.append(size)
        steps.append(step)
        assume(keys + sum(pads[-1]) > 0)
    return sizes, pads, mode, steps


@given(padded_images())
def test_key_images_are_those_of_index_lists(case):
    sizes, pads, mode, steps = case
    x = torch.randn(2, 3, *sizes)
    geometry = Geometry.parse(len(sizes), padding=pads, padding_mode=mode, input_dilation=steps)
    lists = [key_index(*axis) for axis in zip(sizes, pads, [mode] * len(sizes), steps, strict=True)]
    keys = pad_keys(x, geometry)
    assert torch.equal(keys, take_keys(x, lists))
    assert [axis.keys for axis in geometry.axes(sizes)] == list(keys.shape[2:])


def test_gradients_reach_the_image_through_padding():
    """Each pixel's gradient counts the keys that show it."""
    x = torch.zeros(1, 1, 3, requires_grad=True)
    pad_keys(x, Geometry.parse(1, padding=[(2, 1)], padding_mode="replicate")).sum().backward()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("mode", "pads", "message"),
    [
        (
            "reflect",
            (0, 3),
            "x must have at least 4 pixels along axis 1 for reflect padding of 3, but has 3",
        ),
        (
            "circular",
            (4, 0),
            "x must have at least 4 pixels along axis 1 for circular padding of 4, but has 3",
        ),
    ],
)
def test_more_padding_than_there_is_to_show_is_refused(mode, pads, message):
    with pytest.raises(ShapeError, match=message):
        pad_keys(
            torch.zeros(1, 1, 9, 3), Geometry.parse(2, padding=[(0, 0), pads], padding_mode=mode)
        )


def test_queries_are_taken_where_they_stand():
    keys = torch.randn(2, 3, 5, 7)
    taken = query_pixels(keys, [Axis(range(5), 5), Axis(range(1, 7, 3), 7)])
    assert torch.equal(taken, keys[..., [1, 4]])
