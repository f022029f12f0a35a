"""Trains a converted network beside its source: the same losses, and the same parameters afterwards?"""

import math
import random
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.utils._pytree import tree_leaves

from convattn import network_to_conv
from convattn.budget import Sums, budget, roundings
from convattn.convert.network_runs import (
    Arguments,
    copy_network,
    read_arguments,
)
from convattn.random_numbers import SameDraws, keep_random_state
from evidence.sweep.subjects import Built

STEPS = 2
"""Steps of stochastic gradient descent, without momentum."""

MOVED = 0.001
"""Length of the source's first step, as a share of the length of all its parameters."""


class Trained(NamedTuple):
    """A network after some steps."""

    network: nn.Module
    before: dict[str, Tensor]  # Its parameters before the last step, by name
    losses: Tensor  # Before the first step, and after each
    terms: int  # Numbers that a loss is a mean of
    rate: float


def train(network: nn.Module, arguments: Any, rate: float | None = None) -> Trained:
    """Trains a copy of a network, in training mode, towards standard normal outputs.

    The loss is the mean square of what is missing, added up over all floating-point outputs.

    Args:
        network: The network; it is not changed.
        arguments: Its arguments.
        rate: Learning rate; None takes that of which the first step has the length `MOVED`.

    Returns:
        The network, its losses, and the rate.
    """
    network = copy_network(network).train()
    held = list(network.parameters())
    own = read_arguments(network, arguments)
    losses = []
    before: dict[str, Tensor] = {}
    for step in range(STEPS + 1):
        loss, terms = _loss(network, own.copied(held[0].dtype), step)
        losses.append(loss.detach().double())
        if step == STEPS:
            break
        loss.backward()
        slopes = [x.grad for x in held if x.grad is not None]
        rate = rate or MOVED * (get_total_norm(held) / get_total_norm(slopes)).item()
        before = _values(network)
        optimiser = torch.optim.SGD(held, lr=rate)
        optimiser.step()
        optimiser.zero_grad()
    return Trained(network, before, torch.stack(losses), terms, rate)


def _loss(network: nn.Module, arguments: Arguments, seed: int) -> tuple[Tensor, int]:
    """Runs a network; returns its loss, and how many numbers that is a mean of."""
    with keep_random_state(network), SameDraws():
        torch.manual_seed(seed)
        random.seed(seed)
        results = network(*arguments.positional, **arguments.named)
    generator = torch.Generator().manual_seed(0)
    squares = []
    for x in tree_leaves(results):
        if isinstance(x, Tensor) and x.is_floating_point() and x.requires_grad:
            target = torch.randn(x.shape, generator=generator)
            squares.append((x - target.to(x.dtype)).square())
    terms = sum(square.numel() for square in squares)
    return torch.stack([square.mean() for square in squares]).sum(), terms


def _values(network: nn.Module) -> dict[str, Tensor]:
    """Copies the parameters of a network, by name; a complex number becomes two real ones."""
    values = {}
    for name, x in network.named_parameters():
        copied = x.detach().clone()
        values[name] = torch.view_as_real(copied) if copied.is_complex() else copied
    return values


def train_beside(built: Built, attention: nn.Module) -> dict[str, Any]:
    """Trains a converted network and its source at the same rate, and compares them.

    The trained attention is brought back to convolutions, so that their weights are compared, too, and all other
    parameters that have one name. What rounding explains is what it does to the source: twice the largest difference
    between its training in float64 and in float32, with five roundings of the first parameters. Where the source does
    not run in float64, its training in float32 is the reference. As a control, the source without its last step has
    to be farther off.

    Args:
        built: The source and its arguments.
        attention: What it was converted to.

    Returns:
        What the record says.
    """
    network = copy_network(built.network)
    learn = partial(train, arguments=built.arguments)
    try:
        learn = partial(learn, rate=learn(network).rate)
        source, *others = roundings(learn, network)
    except Exception as error:  # noqa: BLE001 - a foreign network may fail in any way
        return {"outcome": "not trained", "reason": f"{type(error).__name__}: {error}"}
    if not (math.isfinite(source.rate) and source.losses.isfinite().all()):
        return {"outcome": "not trained", "reason": "its losses or gradients are no numbers"}
    try:
        reference, lows = learn(copy_network(network).double()), [source, *others]
    except Exception:  # noqa: BLE001 - it may be written for float32 alone
        reference, lows = source, others
    learned = learn(attention)
    returned = _values(network_to_conv(learned.network, images=built.arguments)[0])
    start, after = _values(network), _values(source.network)
    exact, runs = _values(reference.network), [_values(low.network) for low in lows]
    rows, moved, apart, missed = [], 0.0, 0.0, 0.0
    names = [name for name in start if name in returned]
    for name in names:
        rounding = budget(exact[name].double(), [run[name] for run in runs])
        rows.append(_row(name, returned[name], exact[name], rounding))
        moved = max(moved, _apart(after[name], start[name]))
        apart = max(apart, _apart(returned[name], after[name]))
        missed = max(missed, _row(name, source.before[name], exact[name], rounding)["share"])
    losses = reference.losses
    sums = Sums(reference.terms, losses).floor(torch.float32).max().item()
    rounding = budget(losses.double(), [low.losses.float() for low in lows])
    of_losses = _row("losses", learned.losses, losses, max(sums, rounding))
    worst = max(rows, key=itemgetter("share"), default=of_losses)
    return {
        "outcome": "passed" if max(worst["share"], of_losses["share"]) <= 1 else "failed",
        "reference": "float32" if reference is source else "float64",
        "rate": source.rate,
        "losses": source.losses.tolist(),
        "losses_converted": learned.losses.tolist(),
        "losses_compared": of_losses,
        "compared": len(names),
        "not_compared": len(start) - len(names),
        "moved": moved,
        "difference": apart,
        **worst,
        "missed_step": {"share_of_budget": missed, "rejected": missed > 1},
    }


def _row(name: str, x: Tensor, exact: Tensor, rounding: float) -> dict[str, Any]:
    """Says how far numbers are from the reference, and how far rounding explains."""
    error = _apart(x, exact)
    share = error / rounding if rounding else math.inf
    if not error:
        share = 0.0
    elif math.isnan(share):
        share = math.inf
    return {"name": name, "measured_error": error, "rounding": rounding, "share": share}


def _apart(x: Tensor, other: Tensor) -> float:
    """Returns the largest difference of two tensors."""
    return (x.double() - other.double()).abs().max().item() if x.numel() else 0.0
