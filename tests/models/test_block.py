import pytest
import torch
from torch import nn

from convattn.budget import assert_within_budget, references
from convattn.models.block import MixingBlock


def norm(pixels, layer):
    """Layer normalisation as written in its definition."""
    centred = pixels - pixels.mean(-1, keepdim=True)
    variance = (centred**2).mean(-1, keepdim=True)
    return centred / (variance + 1e-12).sqrt() * layer.weight + layer.bias


def by_hand(block, x):
    """The block's two equations on (batch, pixels, channels)."""

    def mix(pixels):
        images = pixels.mT.reshape(x.shape)
        return block.mixer(images).flatten(2).mT @ block.dense.weight.T + block.dense.bias

    def feed_forward(pixels):
        hidden = pixels @ block.expand.weight.T + block.expand.bias
        hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
        return hidden @ block.contract.weight.T + block.contract.bias

    pixels = x.flatten(2).mT
    pixels = norm(pixels + mix(pixels), block.mixer_norm)
    pixels = norm(pixels + feed_forward(pixels), block.feedforward_norm)
    return pixels.mT.reshape(x.shape)


@pytest.fixture
def block():
    torch.manual_seed(0)
    block = MixingBlock(nn.Conv2d(5, 5, 3, padding=1), 5, ffn=11, dropout=0.1).eval()
    for layer in (block.mixer_norm, block.feedforward_norm):
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return block


def test_block_is_its_equations(block):
    x = torch.randn(2, 5, 7, 3, generator=torch.Generator().manual_seed(1))
    assert_within_budget(block(x), *references(by_hand, block, x))


@pytest.mark.parametrize(
    ("mixer", "shape"), [(nn.Conv1d(5, 5, 1), (2, 5, 7)), (nn.Conv3d(5, 5, 1), (2, 5, 2, 3, 7))]
)
def test_block_takes_any_number_of_axes(mixer, shape):
    assert MixingBlock(mixer, 5, ffn=11, dropout=0.1)(torch.zeros(shape)).shape == shape


def test_dropout_is_on_both_branches_in_training_only(block):
    x = torch.randn(2, 5, 7, 3)
    assert torch.equal(block(x), block(x))
    block.dropout.p = 1.0
    block.train()

    def normalise(block, x):
        pixels = norm(x.flatten(2).mT, block.mixer_norm)
        return norm(pixels, block.feedforward_norm).mT.reshape(x.shape)

    assert_within_budget(block(x), *references(normalise, block, x))
