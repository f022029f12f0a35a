"""Figures of a report: each number is where it belongs, of images and of sequences."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tests.heads.analyze_cases import gated, noise

from convattn.errors import ArgumentError
from convattn.heads import analyze
from convattn.lab import report_figures as figures
from convattn.layers import RelativeAttention1d


@pytest.fixture(scope="module")
def image():
    return analyze(gated(0.6), noise(4, 6, 5, 7), progress=False)


@pytest.fixture(scope="module")
def sequence():
    torch.manual_seed(0)
    return analyze(
        RelativeAttention1d(6, 5, num_heads=3, encoding="distance"), noise(4, 6, 11), progress=False
    )


def with_kernels(report, step):
    """The report of heads that look at one displacement."""
    (layer,) = report.layers
    only = tuple(float(other == step) for other in layer.displacements)
    heads = tuple(replace(head, kernel=only) for head in layer.heads)
    return replace(report, layers=(replace(layer, measured=replace(layer.measured, heads=heads)),))


def test_maps_of_sequences_are_rows(sequence):
    (layer,) = with_kernels(sequence, (2.0,)).layers
    maps = figures.head_maps(layer)
    assert [weights.tolist() for weights in maps] == [[[0.0, 0.0, 0.0, 0.0, 1.0]]] * 3


def test_maps_of_images_are_cut_to_what_heads_look_at(image):
    """The square reaches the one displacement, by three columns, and no further."""
    (layer,) = with_kernels(image, (0.0, 3.0)).layers
    expected = np.zeros((7, 7))
    expected[3, 6] = 1.0
    assert [np.array_equal(weights, expected) for weights in figures.head_maps(layer)] == [True] * 3


def test_the_query_is_in_the_middle_of_maps_that_are_one_sided(sequence):
    """As a causal layer's are: there is no displacement after the query."""
    (layer,) = with_kernels(sequence, (0.0,)).layers
    before = [place for place, step in enumerate(layer.displacements) if step[0] <= 0]
    heads = tuple(
        replace(head, kernel=tuple(head.kernel[place] for place in before)) for head in layer.heads
    )
    causal = replace(
        layer,
        displacements=tuple(layer.displacements[place] for place in before),
        measured=replace(layer.measured, heads=heads),
    )
    expected = np.array([[0.0, 0.0, 1.0, np.nan, np.nan]])
    for weights in figures.head_maps(causal):
        assert np.array_equal(weights, expected, equal_nan=True)


def test_a_map_without_any_displacement_is_one_unknown_cell(image):
    (layer,) = image.layers
    heads = tuple(replace(head, kernel=()) for head in layer.heads)
    empty = replace(layer, displacements=(), measured=replace(layer.measured, heads=heads))
    assert [weights.shape for weights in figures.head_maps(empty)] == [(1, 1)] * 3
    assert all(np.isnan(weights).all() for weights in figures.head_maps(empty))
    assert len(figures.head_pictures(empty)) == 3


def test_the_picture_of_a_head_has_a_pixel_for_each_displacement(image, sequence):
    for report, step, size, place in (
        (image, (0.0, 3.0), (7, 7), (6, 3)),
        (sequence, (2.0,), (5, 1), (4, 0)),
    ):
        (layer,) = with_kernels(report, step).layers
        with Image.open(io.BytesIO(figures.head_pictures(layer)[0])) as picture:
            assert picture.size == size
            light = picture.convert("L")
            assert [at for at in np.ndindex(size) if light.getpixel(at) > 128] == [place]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"heads": [77]}, r"heads must be numbers from 0 to 2, or None, but is \[77\]"),
        ({"heads": []}, "heads must be numbers from 0 to 2, or None"),
        ({"layers": []}, "layers must be one or more, or None"),
    ],
)
def test_heads_that_are_not_there_are_not_drawn(image, chosen, message, tmp_path):
    with pytest.raises(ArgumentError, match=message):
        figures.head_grid([tmp_path / "heads.svg"], image, **chosen)
    assert not any(tmp_path.iterdir())
