import pytest

from convattn.lab.figures import SharpnessCurve


def curve(bound, rounding):
    sharpness = (1.0, 2.0, 3.0)
    return SharpnessCurve(2, "float32", 5, sharpness, bound, bound, bound, rounding)


@pytest.mark.parametrize(
    ("bound", "rounding", "soft_until", "floor_from"),
    [
        ((4.0, 0.5, 1e-9), 1e-7, 2.0, 3.0),
        ((0.5, 0.1, 1e-3), 1e-7, 1.0, None),
        ((4.0, 3.0, 1.0), 1e-7, None, None),
    ],
)
def test_borders_are_the_first_sharpness_below(bound, rounding, soft_until, floor_from):
    measured = curve(bound, rounding)
    assert (measured.soft_until(), measured.floor_from()) == (soft_until, floor_from)


def test_curve_round_trips():
    measured = curve((4.0, 0.5, 1e-9), 1e-7)
    assert SharpnessCurve.from_json(measured.to_json()) == measured
