"""Under autocast, small images are computed over all pairs where that is quicker."""

import pytest
import torch

from convattn.layers import RelativeAttention2d, RelativeAttention3d


@pytest.mark.parametrize("sizes", [(7, 9), (3, 5, 4), (7, 11)], ids=str)
def test_axes_of_small_images_are_joined_unless_the_call_is_small(sizes):
    kind = {2: RelativeAttention2d, 3: RelativeAttention3d}[len(sizes)]
    layer = kind(3, 5, num_heads=4)
    for enabled, batch in ((False, 2), (False, 700), (True, 2), (True, 700)):
        with torch.autocast("cpu", enabled=enabled):
            joined = "those of all pairs" in layer.plan((batch, 3, *sizes)).reason
        assert joined == (batch == 700 and sizes != (7, 11)), (enabled, batch)
