from importlib import import_module

import pytest
import torch

from convattn.budget import assert_within_budget, roundings
from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.lab.paper_figures import mean_attention
from convattn.models import AttentionNet, ConvNet

QUERIES = [(1, 2), (3, 0)]


def network(*, content):
    torch.manual_seed(0)
    sizes = {
        "in_channels": 1,
        "width": 6,
        "depth": 2,
        "heads": 3,
        "ffn": 7,
        "image_size": 8,
        "initializer_range": 0.5,
    }
    return AttentionNet("learned_axial", content=content, **sizes).eval()


def by_hand(net, images):
    """Attention of every layer on each image alone, block by block."""
    layers = [[] for _ in net.blocks]
    with torch.inference_mode():
        for image in images:
            pixels = net.embed(net.patches(image[None]).movedim(1, -1)).movedim(-1, 1)
            for found, block in zip(layers, net.blocks, strict=True):
                found.append(block.mixer.attention(pixels)[0])
                pixels = block(pixels)
    return [torch.stack(found) for found in layers]


def test_content_maps_are_the_mean_over_images(monkeypatch):
    """Of two at a time."""
    monkeypatch.setattr(import_module("convattn.heads.mean_maps"), "_AT_ONCE", 2)
    net, images = (
        network(content=True),
        torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1)),
    )
    found = mean_attention(net, images, QUERIES)
    highs = by_hand(network(content=True).double(), images.double())
    for maps, high, *lows in zip(found, highs, *roundings(by_hand, net, images), strict=True):
        for number, (row, col) in enumerate(QUERIES):
            hi, *los = (item[:, :, row, col].mean(0) for item in (high, *lows))
            assert_within_budget(torch.from_numpy(maps[number]), hi, los)


def test_mean_is_not_that_of_one_image():
    net, images = (
        network(content=True),
        torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1)),
    )
    both, one = (mean_attention(net, chosen, QUERIES)[0] for chosen in (images, images[:1]))
    assert abs(both - one).max() > 1e-3


def test_without_content_maps_are_those_of_the_layers_whatever_the_images():
    net, images = network(content=False), torch.randn(3, 1, 8, 8)
    for shown in (images, torch.zeros(1, 1, 8, 8)):
        for maps, block in zip(mean_attention(net, shown, QUERIES), net.blocks, strict=True):
            expected = block.mixer.attention((4, 4)).detach().double().numpy()
            for number, (row, col) in enumerate(QUERIES):
                difference = abs(maps[number] - expected[:, row, col]).max()
                assert difference <= 2 * 3 * torch.finfo(torch.float64).eps


def test_no_hook_is_left_even_after_an_error():
    net = network(content=True)
    with pytest.raises(ArgumentError):
        mean_attention(net, torch.zeros(1, 5, 8, 8), QUERIES)
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_networks_without_attention_are_refused():
    with pytest.raises(UnsupportedModelError, match="no attention of ConvNet can be read"):
        mean_attention(ConvNet(width=4, depth=1, ffn=4), torch.zeros(1, 3, 8, 8), QUERIES)
