"""Gates that start closed on content: the same function to the bit, a gradient all the same, and what it can learn."""

import pytest
import torch
from tests.layers.layer_cases import by_reference
from tests.testing.convolutions import convolve
from torch import nn

from convattn.budget import assert_within_budget, references
from convattn.convert import conv_to_attention
from convattn.errors import UnknownNameError
from convattn.layers import (
    Content,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)

KINDS = {1: RelativeAttention1d, 2: RelativeAttention2d, 3: RelativeAttention3d}
CONVOLUTIONS = {
    "1d": (nn.Conv1d(4, 6, 5, padding=2, groups=2), (4, 11)),
    "2d": (nn.Conv2d(3, 5, 3, padding=1), (3, 5, 7)),
    "strided": (nn.Conv2d(3, 5, 3, stride=2, padding=1, padding_mode="reflect"), (3, 7, 5)),
    "depthwise": (nn.Conv2d(6, 6, 3, padding=1, dilation=2, groups=6), (6, 5, 7)),
    "even": (nn.Conv2d(3, 2, 2), (3, 5, 4)),
    "transposed": (nn.ConvTranspose2d(3, 5, 3, stride=2, output_padding=1), (3, 3, 4)),
    "3d": (nn.Conv3d(2, 3, (1, 3, 2)), (2, 3, 5, 4)),
}
"""Convolutions by name, and the shape of an image for each."""


def pixels(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )


def pair(dims, encoding, **options):
    """Returns a layer with closed gates and the one without content that holds the same numbers."""
    torch.manual_seed(0)
    closed = KINDS[dims](4, 6, num_heads=4, encoding=encoding, gate="tanh", **options)
    alone = KINDS[dims](4, 6, num_heads=4, encoding=encoding, **options)
    alone.load_state_dict({name: closed.state_dict()[name] for name in alone.state_dict()})
    return closed.eval(), alone.eval()


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("encoding", ["quadratic", "distance"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_closed_gates_leave_the_function_as_it_is_to_the_bit(dims, encoding, impl):
    closed, alone = pair(dims, encoding, kernel_size=3, padding=1, stride=2, groups=2, impl=impl)
    x = pixels(2, 4, 5, 7, 3)[(..., *(0,) * (3 - dims))]
    with torch.no_grad():
        assert torch.equal(closed(x), alone(x))
        plans = [layer.plan(x.shape) for layer in (closed, alone)]
    assert plans[0] == plans[1]
    assert plans[0].path != "content"


@pytest.mark.parametrize(("conv", "shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_closed_gate_has_a_gradient_and_its_function_is_the_convolution(conv, shape):
    torch.manual_seed(0)
    layer, certificate = conv_to_attention(conv, content=True)
    assert certificate.exact
    assert certificate.passed
    x = pixels(2, *shape)
    plain = conv_to_attention(conv)[0]
    with torch.no_grad():
        assert torch.equal(layer(x), plain(x))
        assert layer.plan(x.shape).path == "shift"
    assert layer.plan(x.shape).path == "content"
    y = layer(x)
    assert_within_budget(y, *references(convolve, conv, x))
    (y * pixels(*y.shape)).sum().backward()
    assert (layer.gate.grad != 0).all()
    assert not any(number.grad.any() for number in layer.content.parameters())
    nn.init.constant_(layer.gate, 1e-3)
    layer.zero_grad()
    layer(x).square().sum().backward()
    assert all(number.grad.any() for number in layer.content.parameters())


def test_a_gate_that_opens_is_seen_at_once():
    """Nothing that was kept of the closed layer is used for the open one."""
    layer, _ = conv_to_attention(nn.Conv2d(3, 5, 3, padding=1), content=True)
    x = pixels(2, 3, 5, 7)
    with torch.no_grad():
        before = [layer.eval()(x) for _ in range(2)]
        layer.gate[2] = 0.5
        opened = layer(x)
        layer.gate.zero_()
        assert torch.equal(layer(x), before[0])
    assert torch.equal(*before)
    assert (opened - before[0]).abs().max() > 1e-2


@pytest.mark.parametrize("gate", [-1.5, 0.7])
def test_rows_sum_to_one_where_content_is_subtracted_too(gate):
    layer = RelativeAttention2d(4, 6, num_heads=2, gate="tanh").double()
    nn.init.constant_(layer.gate, gate)
    sums = layer.attention(pixels(2, 4, 3, 5, dtype=torch.float64)).sum((-1, -2))
    assert (sums - 1).abs().max() <= 100 * torch.finfo(torch.float64).eps
    assert (layer.attention(pixels(2, 4, 3, 5, dtype=torch.float64)).min() < 0) == (gate < 0)


def test_frozen_closed_gates_cost_nothing_with_gradients_either():
    layer, _ = conv_to_attention(nn.Conv2d(3, 5, 3, padding=1), content=True)
    assert layer.plan((2, 3, 5, 7)).path == "content"
    layer.gate.requires_grad_(False)
    layer.content.requires_grad_(False)
    assert layer.plan((2, 3, 5, 7)).path == "shift"
    layer.impl = "content"
    assert layer.plan((2, 3, 5, 7)).path == "content"


def test_a_gate_opens_where_the_task_needs_content():
    """Each output is the value of the pixel that carries a mark, wherever it is: no function of the displacement."""
    torch.manual_seed(0)
    layer, _ = conv_to_attention(nn.Conv1d(2, 1, 1), content=Content(key_width=2, position=False))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(120):
        places, values = torch.randint(7, (64,)), torch.randn(64)
        x = torch.zeros(64, 2, 7)
        x[torch.arange(64), 0, places], x[torch.arange(64), 1, places] = values, 3.0
        loss = (layer(x)[:, 0] - values[:, None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1, "by position alone 6/7 of the variance is left"
    assert layer.gate.abs().item() > 0.5


def test_the_gate_is_kept_in_the_arguments_and_shown():
    layer = RelativeAttention2d(4, 6, num_heads=2, gate="tanh")
    assert layer.options()["gate"] == "tanh"
    assert "gate='tanh'" in repr(layer)
    assert "gate=" not in repr(RelativeAttention2d(4, 6, num_heads=2))
    assert RelativeAttention2d(4, 6, num_heads=2).options()["gate"] is None


@pytest.mark.usefixtures("without_type_checks")
def test_unknown_gate_is_named():
    with pytest.raises(UnknownNameError, match="unknown gate 'tan': did you mean 'tanh'"):
        RelativeAttention2d(4, 6, num_heads=2, gate="tan")


def test_an_exported_layer_with_a_closed_gate_computes_the_same():
    layer, _ = conv_to_attention(nn.Conv2d(3, 5, 3, padding=1), content=True)
    x = pixels(2, 3, 5, 7)
    with torch.no_grad():
        exported = torch.export.export(layer.eval(), (x,)).module()(x)
        assert_within_budget(exported, *by_reference(layer, x))
