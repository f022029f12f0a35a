import copy

import pytest
import torch

from convattn.budget import assert_within_budget, references
from convattn.layers import FactoredValues, MergedValues, RelativeAttention2d


def test_merged_values_start_as_a_convolution_of_as_many_taps_does():
    torch.manual_seed(0)
    weight = MergedValues(9, 40, 60, groups=2).weight
    conv = torch.nn.Conv2d(40, 60, 3, groups=2).weight
    # uniform numbers of the same range: the largest of n is within a few parts in n of the bound
    assert weight.shape == (9, 60, 20)
    assert abs(weight.abs().max() / conv.abs().max() - 1) < 10 / weight.numel()


@pytest.mark.parametrize("groups", [1, 2])
def test_factored_values_start_with_the_variance_of_merged_ones(groups):
    torch.manual_seed(0)
    merged = MergedValues(9, 40, 60, groups).weight
    maps = FactoredValues(9, 40, 60, groups, head_width=7).maps()
    assert maps.shape == merged.shape
    # A variance of n normal numbers is off by √(2/n) of itself. Those of the two factors and of the merged maps add up.
    spread = sum(2 / (9 * drawn) for drawn in (60 * 7, 7 * 40, 60 * 40)) ** 0.5
    assert abs(maps.var() / merged.var() - 1) < 4 * spread


@pytest.mark.parametrize("groups", [1, 2])
def test_factored_values_have_the_rank_of_their_width_in_each_group(groups):
    values = FactoredValues(3, 10, 14, groups, head_width=2).double()
    blocks = values.maps().unflatten(1, (groups, -1))
    assert (torch.linalg.matrix_rank(blocks) == 2).all()


def test_layers_hold_merged_or_factored_values():
    assert isinstance(RelativeAttention2d(3, 5, num_heads=2).values, MergedValues)
    layer = RelativeAttention2d(4, 6, num_heads=2, head_width=3, groups=2)
    assert isinstance(layer.values, FactoredValues)
    assert (layer.values.value.shape, layer.values.output.shape) == ((2, 6, 2), (2, 6, 3))


@pytest.mark.parametrize("impl", ["auto", "separable", "dense", "reference"])
def test_values_held_as_a_kernel_are_the_same_function(impl):
    torch.manual_seed(0)
    kernel = RelativeAttention2d(
        4, 6, num_heads=9, encoding="shift", kernel_size=3, padding=1, groups=2
    )
    apart = copy.deepcopy(kernel)
    apart.values = MergedValues(9, 4, 6, groups=2)
    assert (kernel.values.weight.shape, apart.values.weight.shape) == ((6, 2, 3, 3), (9, 6, 2))
    with torch.no_grad():
        apart.values.weight.copy_(kernel.values.maps())
        apart.bias.copy_(kernel.bias)
    kernel.impl = apart.impl = impl
    x = torch.randn(2, 4, 5, 7)

    def result(layer, images):
        """The output and the gradient of the matrices; those held apart as a kernel."""
        y = layer(images)
        gradient = torch.autograd.grad(y.square().sum(), layer.values.weight)[0]
        return y.detach(), gradient if gradient.ndim == 4 else gradient.movedim(0, -1).view(
            6, 2, 3, 3
        )

    hi, lows = references(result, apart, x)
    for found, exact, *rounded in zip(result(kernel, x), hi, *lows, strict=True):
        assert_within_budget(found, exact, rounded)


@pytest.mark.parametrize(
    ("heads", "encoding", "head_width"),
    [(25, "shift", None), (9, "shift", 2), (9, "quadratic", None)],
)
def test_only_whole_matrices_of_heads_at_the_taps_are_held_as_a_kernel(heads, encoding, head_width):
    layer = RelativeAttention2d(
        3, 5, num_heads=heads, encoding=encoding, kernel_size=3, head_width=head_width
    )
    assert layer.values.kernel_size is None
