import copy
import math

import pytest
import torch

from convattn.budget import assert_within_budget, references
from convattn.errors import ArgumentError
from convattn.layers import NormalisedConv


def drawn(**options):
    torch.manual_seed(0)
    conv = NormalisedConv(3, 4, 2, box=[(-1, 1), (-2, 0)], **options)
    with torch.no_grad():
        for scores in conv.scores:
            scores.normal_()
    return conv, torch.randn(5, 3, 7, 8)


@pytest.mark.parametrize(
    "box", [3, (-1, 1), [(-1, 0, 1)], [(-1, math.nan)], [(-0.9, 0.9)], [(1, 2)], [], [(-1, 1)] * 4]
)
def test_a_box_of_another_form_is_refused(box, without_type_checks):
    with pytest.raises(ArgumentError, match="box must be"):
        NormalisedConv(1, 1, 1, box=box)


def test_a_layer_prints_its_box():
    assert repr(NormalisedConv(1, 1, 1, box=[(-2, 0)])).startswith(
        "NormalisedConv(\n  1, 1, num_heads=1, box=((-2, 0),)\n"
    )


@pytest.mark.parametrize("separable", [True, False])
def test_images_one_by_one_under_vmap(separable):
    conv, x = drawn(separable=separable)
    one_by_one = torch.func.vmap(lambda image: conv(image[None])[0])
    hi, lows = references(lambda conv, x: conv(x), conv, x)
    assert_within_budget(one_by_one(x), hi, lows)


def test_gradients_of_each_image_under_vmap():
    conv, x = drawn()
    parameters = {name: weight.detach() for name, weight in conv.named_parameters()}

    def loss(parameters, image):
        return torch.func.functional_call(conv, parameters, (image[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for name in parameters:

        def gradients(conv, x, name=name):
            weight = conv.get_parameter(name)
            rows = [torch.autograd.grad(conv(y[None]).square().sum(), weight)[0] for y in x]
            return torch.stack(rows)

        hi, lows = references(gradients, copy.deepcopy(conv), x)
        assert_within_budget(each[name], hi, lows)


def test_a_number_added_to_all_scores_changes_nothing():
    conv, x = drawn()
    raised = copy.deepcopy(conv)
    with torch.no_grad():
        for scores in raised.scores:
            scores.mul_(0).add_(100)
        for scores in conv.scores:
            scores.zero_()
    assert torch.equal(raised(x), conv(x))


def test_outputs_and_gradients_lie_in_memory_as_the_images_do():
    conv, x = drawn()
    for layout in (torch.contiguous_format, torch.channels_last):
        leaf = x.clone().contiguous(memory_format=layout).requires_grad_()
        seen = []
        images = leaf * 1
        images.register_hook(seen.append)
        y = conv(images)
        assert y.is_contiguous(memory_format=layout)
        y.square().sum().backward()
        assert seen[0].is_contiguous(memory_format=layout)
