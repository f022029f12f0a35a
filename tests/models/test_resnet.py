import pytest
import torch
from tests.models.network_cases import count_parameters, small_images
from torch.utils.flop_counter import FlopCounterMode

from convattn.errors import ArgumentError, ShapeError
from convattn.models import ResNet, resnet18


def test_parameter_count_is_the_papers():
    with torch.device("meta"):
        assert count_parameters(resnet18()) == 11_173_962


def test_stages_double_the_width():
    network = ResNet(2, width=5)
    assert [block.first.out_channels for block in network.stages] == [5, 5, 10, 10, 20, 20, 40, 40]
    assert network.stem[0].out_channels == 5
    assert network(small_images()).shape == (7, 10)


def test_other_classes_and_channels():
    assert resnet18(3, in_channels=1).eval()(small_images(channels=1)).shape == (7, 3)


def test_wrong_channels_are_refused(without_type_checks):
    message = r"images must be \(batch, 3, rows, cols\), but are \(7, 1, 10, 10\)"
    with pytest.raises(ShapeError, match=message):
        ResNet(1)(small_images(channels=1))
    for images in (torch.zeros(5, 3, 32), torch.zeros(3)):
        with pytest.raises(ShapeError, match="images must be"):
            ResNet(1)(images)


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


def test_operations_are_the_papers_one_point_one_billion():
    with torch.device("meta"):
        assert resnet18().flops(32).total == 1_110_845_440
