"""Keys as cells of a lattice, and what has no place on one: irregular keys, sequences, tokens."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from convattn.errors import UnsupportedModelError
from convattn.heads.layout import OUTSIDE, AttentionCall, global_layout
from convattn.viewer.image_maps import LayerCall, LayerMaps
from convattn.viewer.lattice import key_lattice
from convattn.viewer.scene import SceneTensors

IRREGULAR = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.5]])


def _read(layout):
    weights = torch.ones(1, layout.groups, 2, layout.queries.shape[1], layout.keys.shape[1])
    call = AttentionCall(
        "mix", "Mix", layout, weights, None, None, normalised=True, error=0.0, budget=0.0
    )
    return LayerCall("mix", nn.Identity(), (), call, {"both": weights[0]})


def test_keys_of_a_reduced_grid_are_cells_with_a_step():
    """Each key stands for 2 x 3 pixels; the class token is none of them."""
    places = torch.cartesian_prod(0.5 + 2 * torch.arange(3.0), 1 + 3 * torch.arange(5.0))
    lattice = key_lattice(global_layout((6, 15), prefix=1, keys=places))
    assert lattice[:3] == ([3, 5], [0.5, 1.0], [2.0, 3.0])
    assert lattice.keys.tolist() == [[-1, *range(15)]]


def test_a_key_alone_is_as_large_as_the_grid():
    """As in a pyramid transformer on a small image: the only key is a mean over the whole grid."""
    lattice = key_lattice(
        global_layout((8, 6), keys=torch.tensor([[3.5, 0.5], [3.5, 2.5], [3.5, 4.5]]))
    )
    assert lattice[:3] == ([1, 3], [3.5, 0.5], [8.0, 2.0])
    assert lattice.keys.tolist() == [[0, 1, 2]]


def test_a_layer_whose_keys_are_all_tokens_has_a_lattice_without_cells():
    lattice = key_lattice(global_layout((2, 3), prefix=2, keys=torch.zeros(0, 2)))
    assert lattice[:3] == ([0, 0], [0.0, 0.0], [1.0, 1.0])
    assert lattice.keys.tolist() == [[-1, -2]]


def test_keys_that_are_on_no_lattice_are_refused_with_the_name_of_the_layer():
    layout = global_layout((2, 3), keys=IRREGULAR)
    with pytest.raises(UnsupportedModelError, match=r"^its keys are not on a regular lattice"):
        key_lattice(layout)
    with pytest.raises(UnsupportedModelError, match=r"^mix: its keys are not on a regular lattice"):
        LayerMaps(_read(layout), "0/0", SceneTensors(1000))


def test_queries_of_padding_are_nowhere():
    layout = global_layout((1, 3), prefix=1)
    padded = replace(layout, queries=torch.tensor([[-1, 0, OUTSIDE, 2]]))
    collected = SceneTensors(1000)
    described = LayerMaps(_read(padded), "0/0", collected).describe("mix", None)
    assert collected.by_name[described["queries"]].tolist() == [[-1, 0, OUTSIDE, 2]]
