import pytest
import torch
from tests.models.network_cases import count_parameters, small_images
from torch.utils.flop_counter import FlopCounterMode

from convattn.errors import ArgumentError, ShapeError
from convattn.models import ResNet, resnet18


def test_parameter_count_is_the_papers():
    with torch.device("meta"):
        assert count_parameters(resnet18()) == 11_173_962


def test_flops_are_the_papers_one_point_one_billion():
    # stem; four equal convolutions; thrice four, one of them half as large, and a 1 x 1 shortcut; head
    convolution = 2 * 9 * 64 * 64 * 32**2
    expected = (
        2 * 9 * 3 * 64 * 32**2
        + 4 * convolution
        + 3 * (convolution * 7 // 2 + convolution // 18)
        + 2 * 512 * 10
    )
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        resnet18()(torch.zeros(1, 3, 32, 32))
    assert counter.get_total_flops() == expected == 1_110_845_440


def test_feature_maps_shrink_three_times():
    network = ResNet(1)
    assert network.stages(network.stem(torch.zeros(2, 3, 32, 32))).shape == (2, 512, 4, 4)


def test_stages_double_the_width():
    network = ResNet(2, width=5)
    assert [block.first.out_channels for block in network.stages] == [5, 5, 10, 10, 20, 20, 40, 40]
    assert network.stem[0].out_channels == 5
    assert network(small_images()).shape == (7, 10)


def test_resnet_18_is_64_wide():
    torch.manual_seed(0)
    named = ResNet(2, width=64).state_dict()
    torch.manual_seed(0)
    assert all(torch.equal(named[name], tensor) for name, tensor in resnet18().state_dict().items())


def test_other_classes_and_channels():
    assert resnet18(3, in_channels=1).eval()(small_images(channels=1)).shape == (7, 3)


def test_wrong_channels_are_refused():
    with pytest.raises(ShapeError, match=r"images must have 3 channels, but are \(7, 1, 10, 10\)"):
        ResNet(1)(small_images(channels=1))


@pytest.mark.parametrize("name", ["blocks_per_stage", "num_classes", "in_channels", "width"])
def test_wrong_sizes_are_refused(name):
    with pytest.raises(ArgumentError, match=f"{name} must be an integer of at least 1"):
        ResNet(**{name: 0})


@pytest.mark.parametrize(("width", "size"), [(64, 32), (8, 13)])
def test_operations_are_those_that_pytorch_counts(width, size):
    network = ResNet(2, width=width).eval()
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 3, size, size))
    assert network.flops(size).total == counter.get_total_flops()
