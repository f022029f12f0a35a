"""The grid of patches that a network's own images are cut into."""

import pytest
import torch
from torch import nn

from convattn.errors import ShapeError
from convattn.heads.patch_attention import PatchGrid
from convattn.heads.replace import MeasuredGrid


def test_the_grid_is_that_of_the_last_images():
    patches = nn.Conv2d(3, 4, 2, 2)
    grid = PatchGrid((5, 7), lambda module, image: (image[0] // module.stride[0], image[1] // module.stride[1]))
    patches.register_forward_pre_hook(grid)
    patches(torch.zeros(1, 3, 22, 6))
    assert (grid.sizes, repr(grid), grid.require(34, 1)) == ((11, 3), "11 x 3 patches", (11, 3))
    with pytest.raises(ShapeError, match=r"^tokens must be 35 \(2 prefix and 11 x 3 patches\), but are 37$"):
        grid.require(37, 2)


def test_images_given_by_name_run_as_well():
    """A hook is not given named arguments."""
    patches, images = nn.Conv2d(3, 4, 2, 2), torch.zeros(1, 3, 10, 14)
    expected = patches(images)
    patches.register_forward_pre_hook(PatchGrid((5, 7), lambda *_: (5, 7)))
    patches.register_forward_pre_hook(MeasuredGrid((5, 7)))
    assert torch.equal(patches(input=images), expected)
