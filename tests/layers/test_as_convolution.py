"""A converted layer is a convolution to programs that look: its attributes, and the checkpoint of its source."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import fuse_conv_bn_eval, parametrizations, prune

from convattn import conv_to_attention
from convattn.encodings import Shift
from convattn.errors import ArgumentError
from convattn.layers import RelativeAttention2d

CONVOLUTIONS = {
    "one axis": nn.Conv1d(2, 3, 5, padding=2, dilation=2),
    "steps and groups": nn.Conv2d(4, 6, 3, stride=2, padding=(1, 0), groups=2),
    "even": nn.Conv2d(2, 3, (2, 4), padding=1, padding_mode="reflect", bias=False),
    "volumes": nn.Conv3d(2, 3, (1, 3, 2)),
}
ATTRIBUTES = (
    "kernel_size",
    "stride",
    "padding",
    "padding_mode",
    "dilation",
    "groups",
    "in_channels",
    "out_channels",
)


@pytest.mark.parametrize("sharpness", [None, 5.0], ids=["hard", "soft"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_attributes_and_the_checkpoint_of_a_convolution(name, sharpness):
    conv = CONVOLUTIONS[name]
    layer, _ = conv_to_attention(conv, sharpness=sharpness)
    for attribute in ATTRIBUTES:
        if attribute == "padding" and sharpness is not None:
            assert layer.padding == layer.geometry.padding
        else:
            assert getattr(layer, attribute) == getattr(conv, attribute), attribute
    other = copy.deepcopy(conv)
    nn.init.normal_(other.weight)
    network = nn.Sequential(layer)
    checkpoint = nn.Sequential(other).state_dict()
    for assign in (False, True):
        answer = network.load_state_dict(checkpoint, strict=sharpness is None, assign=assign)
        assert answer.unexpected_keys == []
        assert torch.equal(layer.weight, other.weight)
        assert (layer.bias is None) == (other.bias is None)
    assert list(checkpoint) == list(nn.Sequential(other).state_dict())
    own = nn.Sequential(conv_to_attention(conv, sharpness=sharpness)[0])
    own.load_state_dict(network.state_dict())
    assert torch.equal(own[0].weight, other.weight)


OTHERS = {
    "another shape": conv_to_attention(nn.Conv2d(3, 3, 3))[0],
    "transposed": conv_to_attention(nn.ConvTranspose2d(3, 2, 5, stride=2))[0],
    "heads in another order": RelativeAttention2d(
        3, 3, (1, 5), encoding=Shift(5, 2, displacements=[[0, place] for place in range(5)])
    ),
    "fewer heads": RelativeAttention2d(3, 3, 5, num_heads=3),
    "turned": conv_to_attention(nn.ConvTranspose2d(3, 3, 5))[0],
    "turned and soft": conv_to_attention(nn.ConvTranspose2d(3, 3, 5), sharpness=5.0)[0],
    "no centres": RelativeAttention2d(3, 3, 5, num_heads=25, encoding="learned_table"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_weights_that_are_not_those_of_the_heads_are_not_loaded(name):
    kernel_size = (1, 5) if name == "heads in another order" else 5
    checkpoint = nn.Conv2d(3, 3, kernel_size).state_dict()
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"weight"'):
        OTHERS[name].load_state_dict(checkpoint)


def test_padding_of_what_is_no_convolution_makes_none():
    """A program that fuses takes the attributes and the weight: soft heads must not become hard ones unseen."""
    uneven = RelativeAttention2d(3, 3, 5, padding=[(2, 1), (0, 0)], encoding="shift")
    content = RelativeAttention2d(3, 3, 5, padding=2, encoding="shift", content=True)
    soft = RelativeAttention2d(3, 3, 5, padding=2)
    for layer in (uneven, content, soft, OTHERS["transposed"]):
        assert layer.padding == layer.geometry.padding
        with pytest.raises(TypeError, match="conv2d"):
            nn.Conv2d(3, 3, 5, padding=layer.padding)(torch.zeros(1, 3, 7, 11))


def test_a_norm_is_merged_into_hard_heads():
    conv, norm = nn.Conv2d(3, 5, 3, bias=False).eval(), nn.BatchNorm2d(5).eval()
    nn.init.uniform_(norm.running_mean)
    layer, _ = conv_to_attention(conv)
    x = torch.randn(2, 3, 7, 11)
    assert torch.equal(fuse_conv_bn_eval(layer, norm)(x), fuse_conv_bn_eval(conv, norm)(x))


def test_what_torch_does_to_a_weight_is_done_to_that_of_the_values():
    soft, _ = conv_to_attention(nn.Conv1d(3, 3, 3), sharpness=5.0)
    for change in (
        lambda: prune.l1_unstructured(soft, "weight", 0.5),
        lambda: setattr(soft, "weight", nn.Parameter(soft.weight)),
    ):
        with pytest.raises(ArgumentError, match=r"prune.l1_unstructured\(layer.values, 'weight'"):
            change()
    for change in (parametrizations.weight_norm, parametrizations.spectral_norm):
        with pytest.raises(
            ValueError, match=r"\(values\): .*MergedValues\(\s*weight of \(3, 3, 3\)"
        ):
            change(soft)
        change(soft.values)
    assert soft(torch.randn(2, 3, 7)).requires_grad
