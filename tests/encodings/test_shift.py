"""Hard heads with fixed displacements."""

import pytest
import torch

from convattn.encodings import Quadratic, Shift
from convattn.errors import ArgumentError, ShapeError
from convattn.functional import attention_weights, displacement_scores
from convattn.grid import Axis


def test_the_default_is_the_taps_of_a_kernel_row_by_row():
    assert Shift(9, 2).displacements == tuple(
        (row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)
    )
    assert Shift(27, 3).displacements[0] == (-1, -1, -1)
    assert Shift(5, 1).displacements == ((-2,), (-1,), (0,), (1,), (2,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("displacement", [-70, -2, 0, 3, 100_000])
def test_attention_is_one_hot_at_the_displacement_or_the_nearest_key(displacement, dtype):
    axis = Axis(range(11), 11)
    (table,) = Shift(1, 1, displacements=[[displacement]]).axis_tables([axis], dtype)
    weights = attention_weights(displacement_scores(table, [axis]))[0]
    nearest = (torch.arange(11) + displacement).clamp(0, 10)
    assert torch.equal(weights, torch.nn.functional.one_hot(nearest, 11).to(dtype))


def test_there_is_nothing_to_learn_and_nothing_to_change():
    encoding = Shift(3, 1)
    assert not encoding.state_dict()
    with pytest.raises(AttributeError):
        encoding.displacements = ((0,), (1,), (2,))
    for name in ("sharpness", "centres"):
        with pytest.raises(
            ArgumentError,
            match=f"Shift has no {name} to assign, its heads are hard: soften them first",
        ):
            setattr(encoding, name, 2.0)


def test_softened_heads_have_the_same_centres():
    soft = Shift(2, 2, displacements=[[0, -3], [7, 1]]).soften(2.0)
    assert isinstance(soft, Quadratic)
    assert soft.centres.tolist() == [[0.0, -3.0], [7.0, 1.0]]
    assert soft.sharpness.tolist() == [2.0, 2.0]
    with pytest.raises(
        ArgumentError,
        match=r"sharpness must be a positive finite number in torch\.float32, but is 0",
    ):
        Shift(3, 1).soften(0)


@pytest.mark.parametrize(("heads", "dims"), [(4, 1), (4, 2), (8, 2), (9, 3)])
def test_heads_that_are_no_kernel_need_displacements(heads, dims):
    kind = "odd" if dims == 1 else rf"k \*\* {dims} with an odd k"
    expected = f"num_heads must be {kind} unless displacements are given, but is {heads}"
    with pytest.raises(ArgumentError, match=expected):
        Shift(heads, dims)
    assert Shift(heads, dims, displacements=[[1] * dims] * heads).num_heads == heads


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (
            [[0, 1]],
            ShapeError,
            r"displacements must be finite numbers of shape \(2, 2\), .* but is \(1, 2\)",
        ),
        ([[0], [1, 2]], ArgumentError, r"displacements must be finite numbers of shape \(2, 2\)"),
        (7, ShapeError, r"displacements must be finite numbers of shape \(2, 2\), .* but is \(\)"),
        ([[0, 0.5], [1, 1]], ArgumentError, "displacements must be integers, but is"),
    ],
)
def test_displacements_that_are_none_are_refused(given, kind, message, without_type_checks):
    with pytest.raises(kind, match=message):
        Shift(2, 2, displacements=given)


def test_displacements_are_printed_where_they_are_not_the_default():
    assert repr(Shift(9, 2)) == "Shift(num_heads=9, dims=2)"
    assert (
        repr(Shift(1, 2, displacements=[[0, 4]]))
        == "Shift(num_heads=1, dims=2, displacements=[(0, 4)])"
    )
