"""Every part of an output is compared at its place, whatever it is: planted differences are found, others pass."""

import collections
import copy
import dataclasses
import datetime as dt
import enum
import threading
import types

import numpy as np
import pytest
import torch
from torch import nn

from convattn import certify, network_to_attention

IMAGES = torch.randn(3, 5, generator=torch.Generator().manual_seed(2))


class Also(nn.Module):
    """Returns what `make` makes of scores."""

    def __init__(self, make):
        super().__init__()
        self.linear, self.make = nn.Linear(5, 4), make

    def forward(self, x):
        return self.make(self.linear(x))


def judged(make, other, **options):
    torch.manual_seed(0)
    reference = Also(make)
    changed = Also(other)
    changed.load_state_dict(reference.state_dict())
    return certify(reference, changed, IMAGES, **options)


Pair = collections.namedtuple("Pair", ["scores", "label"])
Renamed = collections.namedtuple("Renamed", ["label", "scores"])
Colour = enum.Enum("Colour", ["RED", "BLUE"])


@dataclasses.dataclass
class Found:
    """A dataclass."""

    box: object
    label: object = "cat"


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a mapping that is no text."""

    name: str


class Holding:
    """An object of a class of its own."""

    def __init__(self, held, label="cat"):
        self.held, self._label = held, label


class Cousin(Holding):
    """Holds the same in another class."""


class Slots:
    """An object without a dictionary."""

    __slots__ = ("__hidden", "held")

    def __init__(self, held, hidden=0):
        self.held, self.__hidden = held, hidden


class Discreet(Holding):
    """Leaves out what it holds when it is pickled."""

    def __getstate__(self):
        return {}


class Sequence(list):
    """A list that has a label."""

    label = "cat"


class Text(str):
    """A text that has a score."""

    score = None


def with_attribute(kind, items, **attributes):
    held = kind(items)
    vars(held).update(attributes)
    return held


def labelled(y, label):
    y.label = label
    return y


def around_itself(y):
    held = [y]
    held.append(held)
    return held


def output_of_transformers(y, last):
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=y, hidden_states=(y.relu(), last))


PLANTED = {
    "floats in lists": (lambda y: y.tolist(), lambda y: (2 * y).tolist()),
    "one float of a list": (lambda y: y.tolist(), lambda y: (y + (y == y.max()) * 1e-3).tolist()),
    "rows of several lengths": (
        lambda y: [y[0].tolist(), [1.0]],
        lambda y: [y[0].tolist(), [1.0, 2.0]],
    ),
    "a float beside scores": (lambda y: (y, y.sum().item()), lambda y: (y, 2 * y.sum().item())),
    "a float that is not finite": (lambda y: (y, float("inf")), lambda y: (y, float("nan"))),
    "a complex number": (lambda y: (y, y.sum().item() * 1j), lambda y: (y, y.sum().item() * 2j)),
    "an integer": (lambda y: (y, 3), lambda y: (y, 4)),
    "a truth value": (lambda y: (y, True), lambda y: (y, 1)),
    "an integer of numpy": (lambda y: (y, np.int64(3)), lambda y: (y, np.int64(4))),
    "text": (lambda y: (y, "cat"), lambda y: (y, "dog")),
    "bytes": (lambda y: (y, b"cat"), lambda y: (y, b"dog")),
    "labels": (
        lambda y: (y, ["cat", "dog"][: len(y)]),
        lambda y: (y, ["dog", "cat"][: len(y)]),
    ),
    "labels of another dtype": (lambda y: (y, y.argmax(1)), lambda y: (y, y.argmax(1).int())),
    "a shape": (lambda y: (y, y > 0), lambda y: (y, (y > 0)[:, :1])),
    "text of numpy": (lambda y: (y, np.array(["cat"])), lambda y: (y, np.array(["dog"]))),
    "nothing": (lambda y: (y, None), lambda y: (y, 0)),
    "one part more": (lambda y: (y,), lambda y: (y, "more")),
    "an empty list": (lambda y: (y, []), lambda y: (y, {})),
    "an empty list more": (lambda y: {"a": y}, lambda y: {"a": y, "b": []}),
    "a key": (lambda y: {"a": y}, lambda y: {"b": y}),
    "exchanged keys": (lambda y: {"a": y, "b": 2 * y}, lambda y: {"b": y, "a": 2 * y}),
    "a key of another type": (lambda y: {1: y}, lambda y: {"1": y}),
    "a key that is an object": (lambda y: {Key("a"): y}, lambda y: {Key("b"): y}),
    "a key of several": (lambda y: {(0, "a"): y}, lambda y: {(0, "b"): y}),
    "order": (lambda y: [y, 2 * y], lambda y: [2 * y, y]),
    "order of labels": (lambda y: [y, 1, 2], lambda y: [y, 2, 1]),
    "names of a tuple": (lambda y: Pair(y, 1), lambda y: Renamed(1, y)),
    "a field of a tuple": (lambda y: Pair(y, 1), lambda y: Pair(y, 2)),
    "deep inside": (
        lambda y: {"a": [(y, {"b": [1, (2.5, "x")]})]},
        lambda y: {"a": [(y, {"b": [1, (2.5, "y")]})]},
    ),
    "a field of a dataclass": (lambda y: Found(y, 1), lambda y: Found(y, 2)),
    "a tensor of a dataclass": (Found, lambda y: Found(2 * y)),
    "a tensor in an object": (Holding, lambda y: Holding(2 * y)),
    "an attribute of an object": (Holding, lambda y: Holding(y, "dog")),
    "the class of an object": (Holding, Cousin),
    "an object in an object": (
        lambda y: Holding(Holding([y])),
        lambda y: Holding(Holding([2 * y])),
    ),
    "a tensor in a slot": (Slots, lambda y: Slots(2 * y)),
    "a hidden slot": (Slots, lambda y: Slots(y, 1)),
    "what is not pickled": (Discreet, lambda y: Discreet(2 * y)),
    "an attribute of a list": (
        lambda y: with_attribute(Sequence, [y], label="cat"),
        lambda y: with_attribute(Sequence, [y], label="dog"),
    ),
    "an attribute of a text": (
        lambda y: (y, with_attribute(Text, "cat", score=y)),
        lambda y: (y, with_attribute(Text, "cat", score=2 * y)),
    ),
    "an attribute of a tensor": (lambda y: labelled(y, "cat"), lambda y: labelled(y, "dog")),
    "a namespace": (
        lambda y: types.SimpleNamespace(y=y, n=1),
        lambda y: types.SimpleNamespace(y=y, n=2),
    ),
    "a queue": (lambda y: collections.deque([y]), lambda y: collections.deque([2 * y])),
    "a set": (lambda y: (y, {"a", "b"}), lambda y: (y, {"a", "c"})),
    "a counter": (
        lambda y: (y, collections.Counter("aab")),
        lambda y: (y, collections.Counter("ab")),
    ),
    "a date": (
        lambda y: (y, dt.date(2024, 2, 3)),
        lambda y: (y, dt.date(2024, 2, 5)),
    ),
    "one of several": (lambda y: (y, Colour.RED), lambda y: (y, Colour.BLUE)),
    "a dtype": (lambda y: (y, y.dtype), lambda y: (y, torch.float16)),
    "a range": (lambda y: (y, range(3)), lambda y: (y, range(5))),
    "a sparse tensor of integers": (
        lambda y: (y, (y > 0).long().to_sparse()),
        lambda y: (y, (2 * (y > 0)).long().to_sparse()),
    ),
    "what holds itself": (around_itself, lambda y: around_itself(2 * y)),
    "outputs of transformers": (
        lambda y: output_of_transformers(y, y.exp()),
        lambda y: output_of_transformers(y, 2 * y.exp()),
    ),
}


def test_outputs_of_every_kind_are_exact():
    def right(y):
        return {name: make(y) for name, (make, _) in PLANTED.items()}

    same = judged(right, right)
    assert same.verdict == "exact", same.summary()
    assert not [item for item in same.not_covered if item.startswith("the output")]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found(name):
    right, planted = PLANTED[name]
    found = judged(right, planted, tolerance=0.9)
    assert found.verdict in ("different", "failed", "close"), found.summary()
    numbers = found.measured_error > found.rounding
    assert numbers or any("the output" in item for item in found.not_covered)


@pytest.mark.parametrize(
    "hidden",
    [
        lambda y: (y, threading.Lock()),
        lambda y: (y, [(_ for _ in ())]),
        lambda y: (y, {object: nn.ReLU()}),
    ],
    ids=["a lock", "a generator", "a module"],
)
def test_what_cannot_be_seen_into_is_named_and_not_called_exact(hidden):
    certificate = judged(hidden, hidden)
    assert certificate.verdict == "close"
    (told,) = [item for item in certificate.not_covered if item.startswith("the output[1]")]
    assert told.endswith("is not compared, so nothing is called exact")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(5, 5, 1), nn.Flatten(), Also(hidden))
    _, converted = network_to_attention(network, images=IMAGES[..., None, None])
    assert converted.verdict == "close"
    assert told in converted.not_covered


FLAT = {
    "a tensor": lambda y: y,
    "a mapping": lambda y: {"a": y, "b": (y > 0).long()},
    "with nothing": lambda y: (y, None, y.exp()),
}
"""What a network returns, of which a runtime returns the arrays in a list."""


@pytest.mark.parametrize("make", FLAT.values(), ids=FLAT)
@pytest.mark.parametrize("factor", [1, 2])
def test_a_function_may_return_the_arrays_in_a_list(make, factor):
    torch.manual_seed(0)
    network = Also(make)

    def arrays(x):
        output = network(torch.from_numpy(x))
        found = output.values() if isinstance(output, dict) else output
        tensors = [found] if isinstance(found, torch.Tensor) else found
        return [factor * y.detach().numpy() for y in tensors if isinstance(y, torch.Tensor)]

    certificate = certify(network, arrays, IMAGES)
    assert (certificate.verdict == "exact") == (factor == 1), certificate.summary()


def test_a_single_image_may_have_as_many_rows_as_channels():
    network = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU())
    certificate = certify(network, copy.deepcopy(network), torch.randn(8, 8, 8))
    assert certificate.verdict == "exact"


def test_a_nested_tensor_is_compared_part_by_part():
    def nested(factor):
        def make(y):
            return torch.nested.as_nested_tensor([y[0], factor * y[1, :2]], layout=torch.jagged)

        return make

    assert judged(nested(1), nested(1)).verdict == "exact"
    assert judged(nested(1), nested(2)).verdict == "different"
