"""What a conversion would change, against what it then changes."""

import dataclasses

import pytest
import torch
from torch import nn

from convattn import network_to_attention, network_to_conv
from convattn.convert import SamePaddedAttention
from convattn.errors import ArgumentError, CheckpointError
from convattn.networks import create_network
from convattn.networks.forecast import ConversionForecast, forecast_attention, forecast_conv


@pytest.fixture
def network():
    layers = [
        nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 4, 2, stride=2),
    ]
    return nn.Sequential(*layers, nn.Conv2d(4, 2, 1), nn.Dropout()).eval()


@pytest.mark.parametrize("impl", ["auto", "separable"])
def test_forecast_says_what_the_conversion_does(impl, network, tmp_path):
    x = torch.randn(1, 3, 8, 8)
    forecast = forecast_attention(network, x, impl=impl, exclude=["3"])
    made, certificate = network_to_attention(network, impl=impl, exclude="3", images=x)
    assert (
        [layer.name for layer in forecast.layers]
        == [layer.name for layer in certificate.layers]
        == ["0", "2"]
    )
    assert [layer.heads for layer in forecast.layers] == [9, 4]
    assert [layer.path for layer in forecast.layers] == [layer.path for layer in certificate.layers]
    assert [layer.result for layer in forecast.layers] == [
        type(made[0]).__name__,
        type(made[2]).__name__,
    ]
    assert forecast.left_alone == certificate.left_alone
    assert forecast.parameters_before == sum(p.numel() for p in network.parameters())
    assert forecast.parameters_after == sum(p.numel() for p in made.parameters())
    # 4 x 4 outputs of 6 channels, 1 channel each, 9 taps; 4 x 4 inputs of 6 channels, 4 outputs, 4 taps
    assert [layer.flops_before for layer in forecast.layers] == [2 * 16 * 6 * 9, 2 * 16 * 6 * 4 * 4]
    plans = made[0].plan(x.shape), made[2].plan(made[:2](x).shape)
    assert [layer.working_bytes for layer in forecast.layers] == [plan.bytes for plan in plans]
    forecast.save(tmp_path / "forecast.json")
    assert ConversionForecast.load(tmp_path / "forecast.json") == forecast
    assert "left alone   3 (Conv2d): left out by exclude" in forecast.summary()


@pytest.mark.parametrize("forecast", [forecast_attention, forecast_conv])
def test_layer_that_is_called_twice_is_counted_twice(forecast):
    x, layer = torch.randn(1, 3, 8, 8), nn.Conv2d(3, 3, 3, padding=1)
    networks = [nn.Sequential(layer), nn.Sequential(layer, nn.MaxPool2d(2), layer)]
    if forecast is forecast_conv:
        networks = [network_to_attention(network, images=x)[0] for network in networks]
    (once,), (twice,) = (forecast(network, x).layers for network in networks)
    if forecast is forecast_conv:
        once, twice = (
            dataclasses.replace(item, flops_before=item.flops_after) for item in (once, twice)
        )
    assert once.flops_before == 2 * 64 * 27 * 3
    assert twice.flops_before == once.flops_before * 5 // 4
    assert twice.working_bytes == once.working_bytes


def test_forecast_towards_convolutions(network):
    x = torch.randn(1, 3, 8, 8)
    made, _ = network_to_attention(network, images=x)
    forecast = forecast_conv(made, x)
    back, _ = network_to_conv(made)
    first = forecast.layers[0]
    assert (first.source, first.result, first.kernel_size) == (
        "RelativeAttention2d",
        "Conv2d",
        (3, 3),
    )
    assert forecast.parameters_after == sum(p.numel() for p in back.parameters())
    assert all(layer.flops_after <= layer.flops_before for layer in forecast.layers)


def test_padding_by_the_size_of_the_image_is_counted():
    network = create_network("timm:tf_mobilenetv3_small_minimal_100", {"num_classes": 2})
    forecast = forecast_attention(network, torch.randn(1, 3, 32, 32), include=["conv_stem"])
    (layer,) = forecast.layers
    assert layer.result == SamePaddedAttention.__name__
    assert layer.flops_before == 2 * 16**2 * network.conv_stem.weight.numel()


def test_layers_that_images_do_not_reach_and_images_that_do_not_fit(network):
    network.register_module("apart", nn.Conv2d(2, 3, 3))
    network.forward = lambda x: x
    (first, *_, last) = forecast_attention(network, torch.randn(1, 3, 8, 8)).layers
    assert last.path == first.path == "not reached"
    assert last.flops_before is last.working_bytes is None
    message = r"images must fit the network, but on those of shape \(1, 5, 8, 8\) it raised RuntimeError: "
    with pytest.raises(ArgumentError, match=message):
        forecast_attention(nn.Sequential(nn.Conv2d(3, 5, 3)), torch.randn(1, 5, 8, 8))


def test_a_forecast_of_another_kind_is_refused():
    with pytest.raises(CheckpointError, match="not a ConversionForecast"):
        ConversionForecast.from_json("{}")
