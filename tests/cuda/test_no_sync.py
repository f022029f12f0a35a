"""A repeated forward asks nothing of the host: on a CUDA device each such question waits until all before is computed.

On CUDA torch itself looks (`set_sync_debug_mode`); on a CPU that takes itself for a GPU a mode looks for numbers that
are read, and for tensors that are made of numbers of Python.
"""

from contextlib import contextmanager

import pytest
import torch
from tests.layers.layer_cases import hard_layer, images
from tests.testing.gpu import pretend
from tests.testing.host_traffic import host_traffic
from torch import nn

from convattn import AttentionNet
from convattn.convert import attention_to_conv, conv_to_attention, freeze
from convattn.encodings import Quadratic, Shift
from convattn.layers import Content, RelativeAttention1d, RelativeAttention2d

SEQUENCE, IMAGE = (1031,), (13, 11)
ONE_AXIS, FROZEN = "auto, one axis", "frozen"


def layer(encoding="quadratic", **options):
    return RelativeAttention2d(3, 5, num_heads=2, encoding=encoding, **options)


def long_layer():
    near = Quadratic(2, 1, centres=[[0.0], [1.0]], sharpness=0.5)
    return RelativeAttention1d(3, 5, num_heads=2, encoding=near)


def normalised():
    return attention_to_conv(layer(), borders="exact", spatial=IMAGE)[0]


def converted():
    return conv_to_attention(nn.Conv2d(3, 5, 3, padding=1))[0]


def soft_copy():
    return conv_to_attention(nn.Conv2d(3, 5, 3, padding=1), sharpness=1.0)[0]


def network():
    return AttentionNet(width=8, depth=1, heads=4, ffn=8, patch=1)


MODULES = {
    "reference": lambda: layer(impl="reference"),
    "separable": lambda: layer(impl="separable"),
    "dense": lambda: layer(impl="dense"),
    "fourier": lambda: layer(impl="fourier"),
    "auto, soft": layer,
    "auto, hard": hard_layer,
    "auto, all pairs": lambda: layer("generalized_quadratic"),
    ONE_AXIS: long_layer,
    "learned table": lambda: layer("learned_table", impl="dense"),
    "learned axial": lambda: layer("learned_axial", impl="separable"),
    "sinusoidal": lambda: layer("sinusoidal"),
    "distance": lambda: layer("distance", impl="dense"),
    "axial distance": lambda: layer("axial_distance", impl="separable"),
    "linear distance": lambda: layer("linear_distance", impl="separable"),
    "fixed heads": lambda: layer(Shift(2, 2, displacements=[[0, 1], [-1, 0]])),
    "fixed heads on the taps of a window": converted,
    "soft heads on the taps of a window": soft_copy,
    "narrow heads": lambda: layer(head_width=2),
    "content": lambda: layer(content=True),
    "content without positions": lambda: layer(content=Content(position=False)),
    "content, learned axial": lambda: layer("learned_axial", content=True),
    "content, distance": lambda: layer("distance", content=True),
    "scores as channels": lambda: layer(content=True, impl="quadratic"),
    "sigmoid gate": lambda: layer(gate="sigmoid"),
    "tanh gate": lambda: layer(gate="tanh"),
    FROZEN: layer,
    "normalised convolution": normalised,
    "network": network,
}

ASKS = {"fourier"}
"""Modules that ask the host in every call: how many digits transforms lose depends on the scores."""


@contextmanager
def no_questions(device):
    """Fails if a computation on the device asks something of the host."""
    if device.type == "cpu":
        with host_traffic() as seen:
            yield
        assert not seen, "; ".join(dict.fromkeys(seen))
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def named(name):
    reason = "the layer asks the host in every call"
    raised = (AssertionError, RuntimeError)
    mark = pytest.mark.xfail(strict=True, raises=raised, reason=reason)
    return pytest.param(name, id=name, marks=[mark] if name in ASKS else [])


@pytest.mark.parametrize("name", [named(name) for name in MODULES])
def test_a_second_call_asks_nothing_of_the_host(device, name, monkeypatch):
    if device.type == "cpu":
        pretend(monkeypatch)
    module = MODULES[name]().eval().to(device)
    x = images(*(SEQUENCE if name == ONE_AXIS else IMAGE)).to(device)
    if name == FROZEN:
        module = freeze(module, x)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            module(x)
            with no_questions(device):
                module(x)


def test_a_question_is_found(device):
    """Negative control: a number that is read, a tensor that is sent."""
    x = torch.ones(3, device=device)
    for ask in (lambda: x.sum().item(), lambda: x + torch.tensor([1.0, 2.0, 3.0]).to(device)):
        with pytest.raises((AssertionError, RuntimeError)), no_questions(device):
            ask()
