import pytest

from evidence.sharpness.__main__ import SharpnessCurve, sharpness_regimes


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


@pytest.mark.parametrize(
    ("bound", "drawn"),
    [((4.0, 0.05, 1e-9), True), ((4.0, 3.0, 1.5), False)],
    ids=["all regimes", "soft all along"],
)
def test_borders_of_regimes_that_are_not_reached_are_not_drawn(tmp_path, bound, drawn):
    sharpness_regimes(tmp_path / "figure.svg", [curve(bound, 1e-7)])
    written = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert [f"<!-- {name} -->" in written for name in ("soft", "floor")] == [drawn, drawn]
