import pytest
import torch
from tests.models.network_cases import SMALL, count_parameters, run, small_images
from torch import nn

from convattn.errors import (
    ConversionError,
    UnsupportedModelError,
)
from convattn.models import AttentionNet
from convattn.testing.budget import assert_within_budget, references


@pytest.fixture
def network():
    torch.manual_seed(0)
    made = AttentionNet("learned_axial", content=True, **SMALL).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


def test_fused_network_is_the_network_without_the_maps_after_attention(network):
    images, width = small_images(), SMALL["width"]
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    fused = network.fused()
    assert_within_budget(fused(images), *references(run, network, images))
    fewer = SMALL["depth"] * (width * width + width)
    assert count_parameters(fused) == count_parameters(network) - fewer
    assert (
        network.flops(10).total - fused.flops(10).total == 2 * 25 * SMALL["depth"] * width * width
    )
    assert not fused.training
    assert network.train().fused().training
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert not {t.data_ptr() for t in network.parameters()} & {
        t.data_ptr() for t in fused.parameters()
    }


def test_network_fused_into_a_wrong_block_is_rejected(network):
    """Negative control: the check above sees one block's map exchanged with another's."""
    images, fused = small_images(), network.fused()
    fused.blocks[0].mixer, fused.blocks[1].mixer = fused.blocks[1].mixer, fused.blocks[0].mixer
    with pytest.raises(AssertionError, match="result: error"):
        assert_within_budget(fused(images), *references(run, network, images))


def test_fused_network_is_the_network_built_without_the_maps(network):
    built = AttentionNet("learned_axial", content=True, dense=False, **SMALL).eval()
    built.load_state_dict(network.fused().state_dict())
    assert torch.equal(built(small_images()), network.fused()(small_images()))


def test_networks_that_cannot_be_fused_say_why(network, without_type_checks):
    with pytest.raises(
        ConversionError, match="cannot fuse block 0: no linear map follows its attention"
    ):
        network.fused().fused()
    network.blocks[1].mixer = nn.Conv2d(14, 14, 1)
    with pytest.raises(
        UnsupportedModelError, match="cannot fuse into Conv2d: known are RelativeAttention1d, "
    ):
        network.fused()
