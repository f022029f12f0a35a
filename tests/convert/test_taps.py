"""What the converter refuses, each with the module's name and the reason."""

import re

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from convattn.convert import conv_to_attention
from convattn.convert.taps import SUPPORTED_CONVOLUTIONS, read_taps
from convattn.errors import UnsupportedModelError


class Special(nn.Conv2d):
    """A convolution that computes something else."""


def not_finite(kind, name, values):
    conv = kind(2, 3, 3)
    with torch.no_grad():
        getattr(conv, name).view(-1)[: len(values)] = torch.tensor(values)
    return conv


def pruned():
    return prune.l1_unstructured(nn.Conv2d(2, 3, 3), "weight", amount=0.5)


def without_weight():
    conv = nn.Conv2d(2, 3, 3)
    del conv.weight
    return conv


def uninitialised():
    conv = nn.Conv2d(2, 3, 3)
    conv.weight = nn.UninitializedParameter()
    return conv


def resized(conv, name, *size):
    setattr(conv, name, nn.Parameter(torch.ones(size)))
    return conv


REFUSED = [
    (
        lambda: resized(nn.Conv2d(2, 3, 3), "weight", 3, 2, 5, 5),
        "Conv2d: its weight must have shape (3, 2, 3, 3) to fit its arguments, but has shape (3, 2, 5, 5)",
    ),
    (
        lambda: resized(nn.ConvTranspose1d(4, 6, 3, groups=2), "weight", 6, 2, 3),
        "ConvTranspose1d: its weight must have shape (4, 3, 3) to fit its arguments, but has shape (6, 2, 3)",
    ),
    (
        lambda: resized(nn.Conv1d(2, 3, 3), "bias", 2),
        "cannot convert Conv1d: its bias must have shape (3,) to fit its arguments, but has shape (2,)",
    ),
    (
        lambda: resized(nn.Conv2d(2, 3, 3), "weight", 0, 2, 3, 3),
        "cannot convert Conv2d: its weight is empty, (0, 2, 3, 3)",
    ),
    (
        lambda: nn.Linear(2, 3),
        "cannot convert Linear: supported convolutions are Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvT",
    ),
    (
        lambda: Special(2, 3, 3),
        "cannot convert Special: it is a subclass of Conv2d and may compute something else",
    ),
    (
        lambda: parametrizations.weight_norm(nn.Conv2d(2, 3, 3)),
        "cannot convert ParametrizedConv2d: it is a subclass",
    ),
    (
        lambda: nn.LazyConv2d(3, 3),
        "cannot convert LazyConv2d: its weight is not initialised; run it once first",
    ),
    (uninitialised, "cannot convert Conv2d: its weight is not initialised; run it once first"),
    (
        pruned,
        "cannot convert Conv2d: its weight is not a parameter; make it one first (what pruning computes with",
    ),
    (without_weight, "cannot convert Conv2d: its weight is not a parameter; make it one first"),
    (
        lambda: nn.Conv2d(2, 3, 3, device="meta"),
        "cannot convert Conv2d: its weight is on the meta device and has no",
    ),
    (
        lambda: nn.Conv1d(2, 3, 3, dtype=torch.complex64),
        "its weight must be float16, bfloat16, float32 or float64, but is torch.complex64",
    ),
    (
        lambda: not_finite(nn.Conv2d, "weight", [torch.nan, 1.0, torch.inf]),
        "its weight must be finite, but holds 2 NaN",
    ),
    (
        lambda: not_finite(nn.Conv1d, "bias", [torch.nan] * 3),
        "cannot convert Conv1d: its bias must be finite, but holds 3 NaN",
    ),
]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_what_is_not_understood_is_refused_by_name(make, message, without_type_checks):
    with pytest.raises(UnsupportedModelError, match=re.escape(message)):
        conv_to_attention(make())


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_what_is_refused_can_be_made_convertible_as_the_message_says():
    lazy = nn.LazyConv2d(3, 3)
    lazy(torch.zeros(1, 2, 5, 7))
    plain = prune.remove(pruned(), "weight")
    for conv in (lazy, plain):
        _, certificate = conv_to_attention(conv)
        assert certificate.passed


@pytest.mark.parametrize(
    ("kind", "dims"),
    SUPPORTED_CONVOLUTIONS.items(),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_supported_convolution_has_its_taps_in_the_order_of_its_weight(kind, dims):
    taps = read_taps(kind(2, 3, (3, 2, 5)[:dims], dilation=2))
    assert len(taps.displacements) == len(taps.maps) == (3, 6, 30)[dims - 1]
    turned = "Transpose" in kind.__name__  # at stride 1; else as the others
    assert list(taps.displacements) == sorted(taps.displacements, reverse=turned)
    first, last = (-2, 0, -4)[:dims], (2, 2, 4)[:dims]
    assert {taps.displacements[0], taps.displacements[-1]} == {first, last}
