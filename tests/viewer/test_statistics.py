"""The timeline of a training: where the heads of a scene were, and when it is left out."""

import numpy as np
import pytest
import torch

from convattn.heads.head_snapshots import HeadSnapshot
from convattn.viewer.build import describe_timeline
from convattn.viewer.scene import SceneTensors


def _shot(epoch, layer, heads):
    """Heads at (epoch, head), with α = 1 + head along rows and three times as much along columns."""
    centres = np.array([[epoch, head] for head in range(heads)], float)
    precisions = np.array([np.diag([2.0, 6.0]) * (1 + head) for head in range(heads)])
    return HeadSnapshot(epoch, 10 * epoch, layer, centres, precisions)


def _described(shots, layers, heads):
    collected = SceneTensors(10**6)
    layers = dict(zip(layers, heads, strict=True))
    return describe_timeline(shots, layers, "network", collected), collected.tensors


def test_a_layer_with_fewer_heads_is_filled_up():
    shots = [_shot(epoch, layer, heads) for epoch in (5, 0) for layer, heads in ((0, 3), (1, 2))]
    timeline, tensors = _described(shots, [4, 7], [3, 2])
    assert (timeline["epochs"], timeline["layers"]) == ([0, 5], [4, 7])
    centres, sharpness = tensors[timeline["centres"]], tensors[timeline["sharpness"]]
    assert centres[1].float().nan_to_num(-1).tolist() == [
        [[5, 0], [5, 1], [5, 2]],
        [[5, 0], [5, 1], [-1, -1]],
    ]
    assert sharpness[0].float().nan_to_num(-1).tolist() == [[2, 4, 6], [2, 4, -1]]
    assert torch.equal(sharpness[0].isnan(), sharpness[1].isnan())


@pytest.mark.parametrize(
    ("shots", "layers", "heads"),
    [
        ([], [0], [3]),
        ([_shot(0, 0, 3)], [0, 1], [3, 3]),
        ([_shot(0, 0, 3), _shot(0, 1, 3)], [0], [3]),
        ([_shot(0, 0, 3), _shot(1, 0, 3)], [0], [2]),
    ],
    ids=["none", "layers missing", "more layers", "other heads"],
)
def test_a_training_of_other_layers_is_left_out(shots, layers, heads):
    assert _described(shots, layers, heads) == (None, {})
