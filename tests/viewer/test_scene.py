"""What is refused while a scene is made."""

import pytest
import torch

from convattn.errors import ArgumentError
from convattn.viewer import SceneSizeError
from convattn.viewer.scene import SceneTensors


def test_numbers_are_narrow_only_without_loss():
    tensors = SceneTensors(1000)
    for values, dtype in (([0.5, -2.0], torch.float16), ([0.1, -2.0], torch.float32)):
        tensor = torch.tensor(values)
        name = tensors.add(f"{dtype}", tensor)
        assert tensors.by_name[name].dtype == dtype
        assert torch.equal(tensors.by_name[name].float(), tensor)


def test_numbers_are_finite_but_for_keys_that_are_never_looked_at():
    tensors = SceneTensors(1000)
    tensors.add("scores", torch.tensor([0.0, -torch.inf]))
    for value in (torch.nan, torch.inf):
        with pytest.raises(ArgumentError, match="network must hold finite numbers, but a of its"):
            tensors.add("a", torch.tensor([0.0, value]))
        tensors.add("a", torch.tensor([0.0, value]), gaps=True)


def test_a_scene_that_is_too_large_says_how_large_it_may_be():
    tensors = SceneTensors(2**20)
    tensors.add("first", torch.zeros(2**19, dtype=torch.uint8))
    message = "the scene would be larger than 1 MiB: take fewer images, or name the layers to show"
    with pytest.raises(SceneSizeError, match=message):
        tensors.add("second", torch.zeros(3 * 2**19, dtype=torch.uint8))
