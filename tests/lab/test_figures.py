import dataclasses
import sys

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from convattn.errors import ArgumentError, MissingDependencyError, UnknownNameError
from convattn.heads import HeadSnapshot
from convattn.lab.figures import FORMATS, draw_heads
from convattn.lab.paper_figures import accuracy_curves, attention_grid

RANDOM = np.random.default_rng(0)
LEANING = np.array([[2.0, 1.5], [1.5, 2.0]])


def snapshots():
    centres, precisions = (
        RANDOM.normal(size=(3, 2)),
        np.stack([np.eye(2), LEANING, np.zeros((2, 2))]),
    )
    return [
        HeadSnapshot(epoch, 10 * epoch, layer, centres, precisions)
        for epoch in (0, 7)
        for layer in (0, 1)
    ]


def several_moments():
    """One layer at the start and at two moments of each of two epochs, named by the steps, and at the end."""
    moments = [(0, 0), (0, 5), (1, 10), (1, 15), (2, 20)]
    return [dataclasses.replace(snapshots()[0], epoch=epoch, step=step) for epoch, step in moments]


def panels():
    epochs = np.arange(1.0, 4.0)
    return {
        "one": {
            "quadratic": [np.stack([epochs, epochs / 9], 1), np.stack([epochs, epochs / 8], 1)[:2]]
        },
    }


def attention_maps():
    return [RANDOM.random((1, heads, 5, 7)) for heads in (3, 2)]


DRAWINGS = {
    "layers": lambda path: draw_heads([path], snapshots()[:2], title="heads"),
    "paths": lambda path: draw_heads(
        [path], several_moments()[1:], title="ways", trace=several_moments()
    ),
    "accuracy_curves": lambda path: accuracy_curves([path], panels(), title="curves"),
    "attention_grid": lambda path: attention_grid(
        [path], attention_maps(), [(2, 3)], title="maps", image=RANDOM.random((10, 14, 3))
    ),
    "moments": lambda path: draw_heads([path], snapshots(), title="moments", columns=2),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_figure_is_written_and_not_empty_and_matplotlib_left_as_it_was(tmp_path, name):
    path = tmp_path / "figure.png"
    before = dict(mpl.rcParams)
    DRAWINGS[name](path)
    assert dict(mpl.rcParams) == before
    assert "pyplot" not in vars(mpl) or not mpl.pyplot.get_fignums()
    with Image.open(path) as image:
        assert min(image.size) > 300
        assert len(image.convert("RGB").getcolors(maxcolors=1 << 24) or []) > 10
    assert [item.name for item in tmp_path.iterdir()] == ["figure.png"]


def test_same_figure_has_same_bytes_in_every_format(tmp_path):
    snapshot = snapshots()[1]
    first, second = ([tmp_path / f"{name}.{form}" for form in FORMATS] for name in "ab")
    for paths in (first, second):
        draw_heads(paths, [snapshot], title="heads")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), other.suffix


def test_ellipse_holds_the_mass_it_says(monkeypatch, tmp_path):
    drawn = []
    from matplotlib import patches

    class Spy(patches.Ellipse):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            drawn.append(self)

    monkeypatch.setattr(patches, "Ellipse", Spy)
    centre = np.array([[1.0, -2.0]])
    draw_heads([tmp_path / "figure.png"], [HeadSnapshot(0, 0, 0, centre, LEANING[None])], title="")
    points = np.random.default_rng(0).multivariate_normal(
        centre[0], np.linalg.inv(LEANING), size=4000
    )
    half, most = drawn
    for ellipse, mass in ((half, 0.5), (most, 0.9)):
        outline = ellipse.get_patch_transform().transform_path(ellipse.get_path())
        inside = outline.contains_points(points[:, ::-1]).mean()
        assert abs(inside - mass) < 4 * (mass * (1 - mass) / len(points)) ** 0.5


@pytest.mark.parametrize("name", DRAWINGS)
def test_other_endings_are_refused(tmp_path, name):
    with pytest.raises(
        UnknownNameError, match=r"unknown ending of the figure .*figure\.gif: 'gif'.* png, svg"
    ):
        DRAWINGS[name](tmp_path / "figure.gif")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", DRAWINGS)
def test_missing_matplotlib_says_how_to_install(monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        MissingDependencyError, match=r'needs matplotlib.*pip install "convattn\[analyze\]"'
    ):
        DRAWINGS[name](tmp_path / "figure.png")


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="snapshots must hold at least one layer"):
        draw_heads([tmp_path / "figure.png"], [], title="")


def test_moments_are_named_by_epochs_or_steps(tmp_path):
    moments = several_moments()
    draw_heads([tmp_path / "figure.svg"], moments, title="ways", trace=moments)
    drawn = (tmp_path / "figure.svg").read_text()
    for name in ("start", "step 5 of 20", "step 10 of 20", "step 15 of 20", "epoch 2"):
        assert f"<!-- layer 1: {name} -->" in drawn


def test_heads_in_one_place_share_a_label(tmp_path):
    centres = np.array([[0, 0], [0.1, -0.2], [2, 2], *[[1, 1]] * 4])
    one = HeadSnapshot(0, 0, 0, centres, np.stack([LEANING] * 7))
    draw_heads([tmp_path / "figure.svg"], [one], title="heads")
    drawn = (tmp_path / "figure.svg").read_text()
    labels = ["1+2", "3", "4 heads"]
    assert [label for label in (*labels, "6", "7") if f"<!-- {label} -->" in drawn] == labels


def test_mean_is_over_the_epochs_that_all_seeds_have(monkeypatch, tmp_path):
    drawn = []
    from matplotlib.axes import Axes

    plot = Axes.plot

    def spy(self, x, y, **style):
        drawn.append((style["linewidth"], list(y)))
        return plot(self, x, y, **style)

    monkeypatch.setattr(Axes, "plot", spy)
    accuracy_curves([tmp_path / "figure.png"], panels(), title="")
    (mean,) = (heights for width, heights in drawn if width > 1)
    assert mean == [100 * np.mean([1 / 9, 1 / 8]), 100 * np.mean([2 / 9, 2 / 8])]
