"""A call never depends on what an earlier call left behind."""

import gc
import pickle
import threading
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from tests.layers.layer_cases import by_reference, hard_layer, images
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune

from convattn.budget import assert_within_budget
from convattn.encodings import LinearDistance, Shift
from convattn.errors import ArgumentError, UnknownNameError
from convattn.layers import RelativeAttention2d


def kernel_layer(**options):
    torch.manual_seed(0)
    return RelativeAttention2d(
        3, 5, num_heads=9, encoding="shift", kernel_size=3, padding=1, **options
    )


class Shifted(nn.Module):
    def forward(self, centres):
        return centres + 1


def replace_centres(layer):
    del layer.encoding.centres
    layer.encoding.centres = torch.full((9, 2), 0.3)  # as of a network that makes weights


def reversed_kernel(layer):
    layer.values.weight = nn.Parameter(layer.values.weight.detach().flip(0))


def normalise_values(layer):
    parametrizations.weight_norm(layer.values, "weight")
    layer.values.parametrizations.weight.original0.mul_(2)


WRITES = {
    "through .data": lambda layer: layer.encoding.centres.data.add_(1),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {**layer.state_dict(), "encoding.centres": torch.ones(9, 2)}
    ),
    "plain tensor": replace_centres,
    "parametrised": lambda layer: parametrize.register_parametrization(
        layer.encoding, "centres", Shifted()
    ),
    "another encoding": lambda layer: setattr(layer, "encoding", LinearDistance(9, 2)),
    "values": reversed_kernel,
    "weight norm of values": normalise_values,
}


@pytest.mark.parametrize("sharpness", [0.3, 128.0], ids=["soft", "hard"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_of_any_kind_is_seen_at_once(write, sharpness):
    torch.manual_seed(0)
    layer, x = hard_layer(sharpness=sharpness).eval(), images(5, 7)
    with torch.no_grad():
        first = layer(x)
        assert torch.equal(layer(x), first)
        write(layer)
        hi, lows = by_reference(layer, x)
        assert_within_budget(layer(x), hi, lows)
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(first, hi, lows)


def test_shifts_that_are_replaced_are_seen_at_once():
    layer, x = kernel_layer().eval(), images(5, 7)
    first = layer(x)
    layer.encoding = Shift(
        9, 2, displacements=[[-row, -col] for row, col in layer.encoding.displacements]
    )
    hi, lows = by_reference(layer, x)
    assert_within_budget(layer(x), hi, lows)
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(first, hi, lows)
    layer.encoding = layer.encoding.soften(0.3)
    assert layer.plan(x.shape).path == "separable"
    assert layer.encoding.centres.grad is None
    layer(x).sum().backward()
    assert layer.encoding.centres.grad.abs().max() > 0


def test_hyper_networks_get_their_gradient():
    """Centres that another network makes are plain tensors with a graph."""
    layer, x = hard_layer(sharpness=0.3).eval(), images(5, 7)
    start = layer.encoding.centres
    (expected,) = torch.autograd.grad(layer(x).square().sum(), start)
    del layer.encoding.centres
    offset = torch.zeros(2, requires_grad=True)
    layer.encoding.centres = start.detach() + offset
    layer(x).square().sum().backward()
    assert torch.equal(offset.grad, expected.sum(0))
    assert offset.grad.all()


@pytest.mark.parametrize("make", [kernel_layer, hard_layer, partial(hard_layer, sharpness=0.3)])
def test_pruning_of_values_follows_the_weights_and_their_gradient(make):
    layer, x = make(bias=False).eval(), images(5, 7)
    prune.random_unstructured(layer.values, "weight", 0.5)
    with torch.no_grad():
        layer.values.weight_orig.mul_(2)
        doubled = layer(x)
        layer.values.weight_orig.div_(2)
        assert torch.equal(doubled, 2 * layer(x))
    for _ in range(2):
        layer(x).sum().backward()
    assert layer.values.weight_orig.grad.count_nonzero() <= layer.values.weight_mask.sum()
    assert layer.values.weight_orig.grad.count_nonzero()


def test_a_forward_hook_on_the_values_takes_effect():
    for layer in (kernel_layer(bias=False), hard_layer(bias=False)):
        x = images(5, 7)
        before = layer(x)
        layer.values.register_forward_hook(lambda *given: 2 * given[-1])
        assert torch.equal(layer(x), 2 * before)


def test_parameters_swapped_in_for_one_call_are_those_used():
    layer, other, x = hard_layer().eval(), hard_layer(sharpness=0.3).eval(), images(5, 7)
    with torch.no_grad():
        before, expected = layer(x), other(x)
        swapped = functional_call(
            layer, {name: value.detach() for name, value in other.named_parameters()}, (x,)
        )
        assert torch.equal(swapped, expected)
        assert torch.equal(layer(x), before)


def test_the_path_is_checked_when_it_is_assigned():
    layer = hard_layer()
    with pytest.raises(UnknownNameError, match="unknown impl 'typo'"):
        layer.impl = "typo"
    assert layer.impl == "auto"
    with pytest.raises(ArgumentError, match=r"impl='content' cannot .*, because its scores do not"):
        layer.impl = "content"
    layer.impl = "separable"
    layer.encoding = RelativeAttention2d(3, 5, num_heads=9, encoding="distance").encoding
    with pytest.raises(ArgumentError, match=r"impl='separable' cannot .* Distance are not a sum"):
        layer(images(5, 7))


def test_the_geometry_is_fixed():
    layer = hard_layer()
    with pytest.raises(AttributeError):
        layer.geometry = RelativeAttention2d(3, 5, num_heads=9, stride=2).geometry


def held(layer):
    """Everything that a layer and its parts hold, and how many bytes its tensors take."""
    places = {
        name: {k: id(v) for k, v in vars(part).items()} for name, part in layer.named_modules()
    }
    return places, len(pickle.dumps(layer))


@pytest.mark.parametrize(
    "layer",
    [
        kernel_layer(),
        hard_layer(),
        hard_layer(sharpness=0.3),
        RelativeAttention2d(3, 5, num_heads=2, encoding="generalized_quadratic"),
        RelativeAttention2d(3, 5, num_heads=2, encoding="sinusoidal", content=True),
    ],
    ids=["kernel", "hard", "soft", "fourier and dense", "content"],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_a_hundred_calls_leave_nothing_behind(layer, gradients):
    layer.eval()
    before = held(layer)
    with torch.set_grad_enabled(gradients), counting_new_tensors() as count:
        for size in range(100):
            layer(torch.zeros(1, 3, 3 + size % 7, 3))
        layer(torch.zeros(1, 3, 17, 13))
        layer.plan((1, 3, 31, 29))
        assert count() == 0
        kept = layer(torch.zeros(1, 3, 5, 3))  # the control
        assert count() > 0
    assert kept.shape == (1, 5, 5, 3)
    assert held(layer) == before


@contextmanager
def counting_new_tensors():
    """Gives a function that counts the tensors made since; the millions of objects made before are not gone through."""
    gc.collect()
    gc.freeze()

    def count():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    yield count


@pytest.mark.parametrize(
    "make", [kernel_layer, partial(hard_layer, sharpness=0.3)], ids=["kernel", "soft"]
)
def test_threads_may_share_a_layer(make):
    layer, sizes = make().eval(), range(3, 12)
    with torch.no_grad():
        expected = {size: layer(images(size, 7)) for size in sizes}
    wrong = []

    def work(number):
        with torch.no_grad():
            for call in range(9):
                size = sizes[(number + call) % len(sizes)]
                try:
                    if not torch.equal(layer(images(size, 7)), expected[size]):
                        wrong.append(size)
                except Exception as error:  # noqa: BLE001 - told below
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
