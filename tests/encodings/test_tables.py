import pytest
import torch

from convattn.encodings import LearnedAxial, LearnedTable, create_encoding
from convattn.errors import EncodingRangeError
from convattn.grid import Axis, Geometry
from convattn.layers import RelativeAttention2d


@pytest.mark.parametrize("kind", [LearnedAxial, LearnedTable])
@pytest.mark.parametrize(
    ("displacement", "extent"),
    [([0.0, 3.0], 4), ([0.0, -3.0], 4), ([0.0, 2.25], 4), ([5.0, 2.0], 6)],
)
def test_displacements_outside_the_table_are_refused_with_the_extent_that_holds_them(
    kind, displacement, extent
):
    encoding = kind(2, 2, extent=(5, 3))
    message = (
        rf"{kind.__name__} holds displacements from -[24] to [24] along axis "
        rf"[01].*: build it with extent={extent}"
    )
    with pytest.raises(EncodingRangeError, match=message):
        encoding(torch.tensor([displacement]))
    assert kind(2, 2, extent=extent)(torch.tensor([displacement])).isfinite().all()


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        (LearnedTable, LearnedTable.table),
        (LearnedAxial, LearnedAxial.table),
        (LearnedAxial, LearnedAxial.axis_tables),
        (LearnedAxial, LearnedAxial.axis_features),
    ],
)
def test_grids_outside_the_table_are_refused(kind, ask):
    encoding = kind(2, 2, extent=(5, 3))
    ask(encoding, [Axis(range(5), 5), Axis(range(3), 3)])
    message = (
        f"{kind.__name__} holds displacements from -2 to 2 along axis 1, but -3 to 3 are asked"
    )
    with pytest.raises(EncodingRangeError, match=message):
        ask(encoding, [Axis(range(5), 5), Axis(range(4), 4)])
    with pytest.raises(EncodingRangeError, match="but -4 to 6 are asked"):
        ask(encoding, [Axis(range(5), 7), Axis(range(3), 3)])


@pytest.mark.parametrize("name", ["learned_axial", "learned_table"])
def test_tables_by_name_hold_common_sizes(name):
    for dims, size, padding in ((1, 512, 8), (2, 32, 8), (3, 16, 4)):
        encoding = create_encoding(name, 1, dims)
        geometry = Geometry.parse(dims, kernel_size=2 * padding + 1, padding=padding)
        encoding.require_axes(geometry.axes([size] * dims))
        with pytest.raises(EncodingRangeError):
            encoding.require_axes(geometry.axes([size + 1] * dims))


@pytest.mark.parametrize("name", ["learned_axial", "learned_table"])
def test_the_error_says_what_to_build(name):
    layer = RelativeAttention2d(1, 1, num_heads=2, encoding=name, kernel_size=3, padding=1)
    with pytest.raises(
        EncodingRangeError, match=r"as in encoding=\w+\(2, 2, extent=57\)"
    ) as caught:
        layer(torch.zeros(1, 1, 41, 56))
    line = str(caught.value).rpartition("encoding=")[2]
    encoding = eval(line, {"LearnedAxial": LearnedAxial, "LearnedTable": LearnedTable})
    layer = RelativeAttention2d(1, 1, num_heads=2, encoding=encoding, kernel_size=3, padding=1)
    layer.encoding.require_axes(layer.geometry.axes((41, 56)))


def test_whole_pixels_read_the_entries_themselves():
    encoding = LearnedTable(2, 2, extent=(5, 3))
    grid = torch.cartesian_prod(torch.arange(-4.0, 5), torch.arange(-2.0, 3))
    assert torch.equal(encoding(grid).view(2, 9, 5), encoding.scores)


def test_without_head_vectors_the_score_is_zero_and_the_features_remain():
    encoding = LearnedAxial(3, 2, extent=4, width=5, head_vectors=False)
    points = torch.rand(7, 2)
    assert torch.equal(encoding(points), torch.zeros(3, 7))
    assert encoding.features(points).shape == (7, 10)
    assert encoding.options() == {"extent": [4, 4], "width": 5, "head_vectors": False}
