"""What the sweep converts: a network of a family at a home."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class WithoutConvolutionError(Exception):
    """A family of which no network holds a convolution; the message says how that was found."""


class Built(NamedTuple):
    """A network and what it is run on.

    Attributes:
        network: The network, as its home builds it, with random weights.
        arguments: A tuple of its positional arguments, or a mapping of its named ones.
    """

    network: nn.Module
    arguments: tuple[Tensor, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A network to convert.

    Attributes:
        name: The architecture's name at its home.
        build: Builds it at its own size, with arguments of its own size; it draws from torch's seeded generator.
        remark: What is special about it, for instance why no smaller one was taken; empty where nothing is.
    """

    name: str
    build: Callable[[], Built]
    remark: str = ""


@dataclass(frozen=True)
class Home:
    """A library, and one network of each of its families.

    Attributes:
        name: The library's name.
        packages: Packages that are imported; the record names the versions of those that are installed.
        families: Names its families; quick.
        subject: Chooses the network of a family; it may take a while. It raises `WithoutConvolutionError` where none
            holds a convolution.
        ways: How its networks are converted: to attention as "auto" (the planned path) or "separable" (softmax
            attention axis by axis), and what is planned then trained a "step" beside its source, or made convolutions
            again, "back".
    """

    name: str
    packages: tuple[str, ...]
    families: Callable[[], Sequence[str]]
    subject: Callable[[str], Subject]
    ways: tuple[str, ...] = ("auto", "separable")


def run(built: Built) -> list[Tensor]:
    """Runs a network without gradients, from the same random numbers each time.

    Args:
        built: The network and its arguments.

    Returns:
        Its floating-point results that hold numbers, in float64.
    """
    network, given = built
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        results = network(**given) if isinstance(given, Mapping) else network(*given)
    return [
        x.double()
        for x in tree_leaves(results)
        if isinstance(x, Tensor) and x.is_floating_point() and x.numel()
    ]
