"""A network before and after its heads were replaced, on images: outputs, predictions and time."""

import statistics
import time

import torch
from torch import Tensor, nn

from convattn.convert.copies import copy_module
from convattn.convert.network.running import Arguments, run
from convattn.errors import ArgumentError, must_fit
from convattn.records import ReplacementTrial

_BATCH = 64
"""Images that run at once."""

_ROUNDS = 7


def compare_on_images(before: nn.Module, after: nn.Module, given: Arguments) -> ReplacementTrial:
    """Runs both networks in evaluation mode; images that the first one does not take raise ArgumentError."""
    before, after = copy_module(before).eval(), copy_module(after).eval()
    batches = given.batches(_BATCH)
    try:
        old = [first_output(before, batch) for batch in batches]
    except Exception as error:  # a foreign network may fail in any way
        raise ArgumentError(must_fit(given.words, error)) from error
    new = [first_output(after, batch) for batch in batches]
    one, two = torch.cat(old).double(), torch.cat(new).double()
    size = one.square().mean().sqrt().item()
    change = (two - one).square().mean().sqrt().item()
    predicted = one.argmax(-1)
    times = _times(before, after, batches[0])
    count = len(old[0])
    return ReplacementTrial(
        images=len(one),
        outputs=one[0].numel(),
        largest_change=(two - one).abs().max().item(),
        relative_change=change / size if size else change,
        predictions=predicted.numel(),
        predictions_changed=int((predicted != two.argmax(-1)).sum()),
        milliseconds_before=1e3 * times[0] / count,
        milliseconds_after=1e3 * times[1] / count,
        rounds=_ROUNDS,
        batch=count,
        threads=torch.get_num_threads(),
    )


def first_output(network: nn.Module, batch: Arguments) -> Tensor:
    """Runs a network, and returns the first tensor of its output."""
    found = run(network, batch)
    if not found or not found[0].ndim:
        raise ArgumentError("the network must return a tensor with one row for each image")
    return found[0]


def _times(before: nn.Module, after: nn.Module, batch: Arguments) -> tuple[float, float]:
    """Returns the median seconds of a batch, the two networks in turn after one run to warm up."""
    taken: dict[nn.Module, list[float]] = {before: [], after: []}
    with torch.inference_mode():
        for _ in range(_ROUNDS):
            for network, seconds in taken.items():
                arguments = batch.copied()
                started = time.perf_counter()
                network(*arguments.positional, **arguments.named)
                seconds.append(time.perf_counter() - started)
    return statistics.median(taken[before]), statistics.median(taken[after])
