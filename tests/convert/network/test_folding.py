"""What is folded into a new convolution, and what is not."""

import pytest
import torch
from tests.convert.network.network_cases import hard, images, with_statistics
from torch import nn

from convattn.convert import network_to_conv
from convattn.layers.block import MixingBlock
from convattn.testing.budget import assert_within_budget, references


@pytest.mark.parametrize("given", [False, True])
def test_batch_normalisation_stays(given):
    model = nn.Sequential(hard(nn.Conv2d(3, 6, 3)), with_statistics(nn.BatchNorm2d(6))).eval()
    made, record = network_to_conv(model, images=images(2, 3, 5, 7) if given else None)
    assert isinstance(made[1], nn.BatchNorm2d)
    assert record.layers[0].notes == ()


@pytest.mark.parametrize("shared", [False, True])
def test_the_linear_map_of_a_block_is_folded_unless_it_is_shared(shared):
    torch.manual_seed(0)
    blocks = [MixingBlock(hard(nn.Conv2d(4, 4, 3, padding=1)), 4, ffn=5) for _ in range(2)]
    if shared:
        blocks[1].dense = blocks[0].dense
    made, record = network_to_conv(nn.Sequential(*blocks).eval(), images=images(2, 4, 5, 7))
    assert record.exact
    assert record.passed
    assert isinstance(made[0].dense, nn.Linear if shared else nn.Identity)


def agrees(made, model, x):
    """Within rounding, at the same shape."""
    hi, lows = references(lambda network, images: network(images), model, x)
    assert_within_budget(made(x), hi, lows, "output")


@pytest.mark.parametrize("given", [False, True])
def test_a_linear_map_after_a_grid_acts_on_the_width_and_stays(given):
    torch.manual_seed(0)
    model = nn.Sequential(hard(nn.Conv2d(3, 10, 3, padding=1)), nn.Linear(10, 7)).eval()
    x = images(3, 3, 11, 10)
    made, record = network_to_conv(model, images=x if given else None)
    assert record.exact
    assert record.passed
    assert made(x).shape == (3, 10, 11, 7)
    agrees(made, model, x)


SIZES = {1: (11,), 2: (5, 7), 3: (3, 5, 7)}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_folded_linear_map_of_a_block_computes_the_same(dims):
    torch.manual_seed(0)
    model = MixingBlock(hard(CONVOLUTIONS[dims](4, 4, 3, padding=1)), 4, ffn=5).eval()
    made, record = network_to_conv(model)
    assert record.layers[0].notes == ("Linear folded in",)
    agrees(made, model, images(2, 4, *SIZES[dims]))


def replaced(module):
    """Computes something else than its class."""
    module.forward = lambda x: x + 1
    return module


def watched(register):
    def add(module):
        getattr(module, register)(lambda *_: None)
        return module

    return add


LOST = {
    "forward of a {} was replaced on the instance": [replaced],
    "a {} has hooks": [
        watched(f"register_{kind}_hook") for kind in ("forward", "forward_pre", "full_backward", "full_backward_pre")
    ],
}


@pytest.mark.parametrize(("reason", "change"), [(reason, change) for reason in LOST for change in LOST[reason]])
def test_what_folding_would_lose_is_not_folded(reason, change):
    torch.manual_seed(0)
    model = MixingBlock(hard(nn.Conv2d(4, 4, 3, padding=1)), 4, ffn=5).eval()
    change(model.dense)
    made, record = network_to_conv(model)
    assert isinstance(made.dense, nn.Linear)
    assert record.layers[0].notes == (f"Linear not folded in: {reason.format('Linear')}",)
    agrees(made, model, images(2, 4, 5, 7))


@pytest.mark.parametrize("place", ["", "mixer"])
def test_hooks_of_gradients_see_what_they_saw(place):
    """Of the block, or of the layer whose output the folded one would change."""
    model = MixingBlock(hard(nn.Conv2d(4, 4, 3, padding=1)), 4, ffn=5).eval()
    watched("register_full_backward_hook")(model.get_submodule(place))
    made, record = network_to_conv(model)
    assert isinstance(made.dense, nn.Linear)
    assert record.layers[0].notes[0].endswith("has hooks")
