"""Under autocast, small images are computed over all pairs where that is quicker."""

import pytest
import torch

from convattn.functional import torch_modes
from convattn.layers import RelativeAttention2d, RelativeAttention3d


@pytest.mark.parametrize("sizes", [(7, 9), (3, 5, 4), (7, 11)], ids=str)
def test_axes_of_small_images_are_joined_unless_the_call_is_small(sizes):
    kind = {2: RelativeAttention2d, 3: RelativeAttention3d}[len(sizes)]
    layer = kind(3, 5, num_heads=4)
    for enabled, batch in ((False, 2), (False, 700), (True, 2), (True, 700)):
        with torch.autocast("cpu", enabled=enabled):
            joined = "those of all pairs" in layer.plan((batch, 3, *sizes)).reason
        assert joined == (batch == 700 and sizes != (7, 11)), (enabled, batch)


@pytest.mark.parametrize("gate", [None, "sigmoid"])
def test_content_with_fewer_outputs_than_inputs_gives_the_dtype_of_autocast(gate):
    layer = RelativeAttention2d(9, 2, num_heads=3, encoding="quadratic", content=True, gate=gate)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(2, 9, 5, 6)).dtype == torch.bfloat16


def test_a_gradient_that_draws_nothing_leaves_random_numbers_alone(monkeypatch):
    """They are those of the process, which another thread may be using."""
    layer = RelativeAttention2d(8, 8, num_heads=3, encoding="quadratic")
    monkeypatch.setattr(torch_modes, "PIECE_BYTES", 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(torch.randn(9, 8, 7, 6)).float().sum()
    monkeypatch.setattr(torch, "set_rng_state", lambda _: pytest.fail("they are changed"))
    y.backward()
    assert layer.encoding.centres.grad.isfinite().all()
