"""Second derivatives by finite differences, and what tells where torch must see operations of its own."""

import pytest
import torch
from torch.autograd import forward_ad

from convattn.functional import separable_attention, tiles
from convattn.functional.fourier import filter_images
from convattn.functional.torch_modes import (
    backward_to_differentiate,
    can_be_read,
    needs_own_operations,
)
from convattn.grid import Axis

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:FutureWarning"
)  # of forward mode

AXES = [
    (Axis(range(0, 4, 3), 4),),
    (Axis(range(2), 2), Axis(range(1, 4, 2), 5)),
    (Axis(range(2), 2), Axis(range(1), 1), Axis(range(2), 3)),
]
every_grid = pytest.mark.parametrize("axes", AXES, ids=["sequence", "image", "volume"])
every_group = pytest.mark.parametrize("groups", [1, 2, 4])


def numbers(*shape, seed):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.requires_grad_()


def attention(axes):
    """Weights along each axis: positive, as the products ask."""
    drawn = (
        numbers(2, len(axis.queries), axis.keys, seed=2 + number)
        for number, axis in enumerate(axes)
    )
    return [weights.detach().softmax(-1).requires_grad_() for weights in drawn]


def images_and_maps(axes, groups):
    return numbers(1, 4, *(axis.keys for axis in axes), seed=0), numbers(2, 4, 4 // groups, seed=1)


def holds(compute, inputs):
    """Compares first and second derivatives, and tangents, with finite differences."""
    assert torch.autograd.gradcheck(compute, inputs, fast_mode=True, check_batched_grad=True)
    return torch.autograd.gradgradcheck(compute, inputs, fast_mode=True, check_batched_grad=True)


@every_grid
@every_group
def test_transforms_have_second_derivatives(axes, groups):
    lengths = [2 * axis.keys for axis in axes]
    inputs = (
        *images_and_maps(axes, groups),
        numbers(2, *lengths, seed=2),
        numbers(2, *(len(axis.queries) for axis in axes), seed=3),
    )
    assert holds(lambda *given: filter_images(*given, axes, groups), inputs)


@pytest.mark.parametrize("many", [8, 0], ids=["channels between", "channels last"])
@every_grid
@every_group
def test_tiles_have_second_derivatives(axes, groups, many, monkeypatch):
    """Also with one channel in each group, where products are taken element by element."""
    monkeypatch.setattr(tiles, "_MANY", many)
    inputs = (*images_and_maps(axes, groups), *attention(axes))
    assert holds(
        lambda keys, maps, *weights: tiles.attention_in_tiles(weights, keys, maps, groups), inputs
    )


def test_no_gradient_goes_from_one_input_to_another_that_it_was_made_of():
    """Matrices made of the images: what reaches the images through them is their own matter, and counted once."""
    (keys, _), weights = images_and_maps(AXES[0], 1), attention(AXES[0])

    def compute(keys):
        return separable_attention(weights, keys, keys.mean().expand(2, 4, 4) ** 2)

    assert torch.autograd.gradgradcheck(compute, (keys,), fast_mode=True)


def test_a_gradient_that_follows_its_inputs_is_noticed(monkeypatch):
    """Negative control of the test above."""
    monkeypatch.setattr(torch.Tensor, "view_as", lambda tensor, _: tensor)
    keys = numbers(3, seed=0)
    made = keys * 2
    found = backward_to_differentiate(
        lambda a, b: (a * b).sum(), [keys, made], [True, True], torch.ones(()).double()
    )
    assert not torch.equal(found[0], made)


def test_first_gradients_are_computed_in_place_and_only_further_ones_are_not():
    """The backward pass leaves a graph of the gradient behind only where one was asked for."""
    keys, maps = images_and_maps(AXES[1], 1)
    weights = attention(AXES[1])
    y = separable_attention(weights, keys, maps)
    plain = torch.autograd.grad(y.square().sum(), [keys, maps, *weights], retain_graph=True)
    further = torch.autograd.grad(y.square().sum(), [keys, maps, *weights], create_graph=True)
    assert not any(gradient.requires_grad for gradient in plain)
    assert all(gradient.requires_grad for gradient in further)


def test_own_operations_are_needed_in_transforms_and_with_tangents():
    x, seen = torch.ones(2, 3), []
    assert not needs_own_operations(x)
    for transform in (torch.func.grad, torch.vmap, torch.func.jacrev):
        transform(lambda t: seen.append(needs_own_operations()) or t.sum())(x)
    assert seen == [True] * 3
    with forward_ad.dual_level():
        assert not needs_own_operations(x)
        assert needs_own_operations(x, forward_ad.make_dual(x, x))


def test_numbers_can_be_read_unless_they_are_mapped_over():
    x, seen = torch.ones(2, 3), []
    torch.func.grad(lambda t: seen.append(can_be_read(t)) or t.sum())(x)
    torch.vmap(lambda t: seen.append(can_be_read(t)) or t)(x)
    torch.vmap(torch.func.grad(lambda t: seen.append(can_be_read(t)) or t.sum()))(x)
    torch.vmap(
        torch.func.grad(lambda t, _: seen.append(can_be_read(t)) or t.sum()), in_dims=(None, 0)
    )(x, x)
    assert seen == [True, False, False, True]
    assert not can_be_read(x.to("meta"))
