import pytest
import torch
from tests.models.network_cases import count_parameters, small_images
from torch.utils.flop_counter import FlopCounterMode

from convattn.errors import ArgumentError
from convattn.models import AttentionNet, ConvNet


def test_parameter_count_is_the_attention_networks_less_centres_and_sharpness():
    with torch.device("meta"):
        control, attention = ConvNet(), AttentionNet("quadratic")
    assert count_parameters(control) == 12_086_682
    assert count_parameters(attention) - count_parameters(control) == 6 * 9 * 3


def test_modules_outside_the_mixers_are_those_of_the_attention_network():
    sizes = {"width": 10, "depth": 2, "ffn": 7}
    control, attention = ConvNet(**sizes), AttentionNet("quadratic", heads=3, **sizes)

    def outside(network):
        return {
            name: tuple(p.shape) for name, p in network.named_parameters() if ".mixer." not in name
        }

    assert outside(control) == outside(attention)


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_flops_agree_with_what_pytorch_counts(kernel_size):
    network = ConvNet(kernel_size, width=10, depth=2, ffn=7)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(small_images()[:1])
    assert counter.get_total_flops() == network.flops(image_size=10).total


def test_flops_at_the_papers_size_are_those_of_the_attention_networks_linear_maps():
    with torch.device("meta"):
        assert ConvNet().flops() == AttentionNet().flops().__class__(linear=6_175_956_800)


@pytest.mark.parametrize(
    ("kernel_size", "message"), [(2, "must be odd"), (0, "an integer of at least 1")]
)
def test_kernels_without_a_middle_are_refused(kernel_size, message):
    with pytest.raises(
        ArgumentError, match=f"kernel_size must be.*{message}|kernel_size {message}"
    ):
        ConvNet(kernel_size)
