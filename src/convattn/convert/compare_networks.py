"""Two networks that should compute the same, on images: against float64, by top-1 and by accuracy."""

import copy
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from convattn.convert.certificate import largest

__all__ = ["Comparison", "compare_networks"]

_BATCH = 64


class Comparison(NamedTuple):
    """How far a network is from another.

    Attributes:
        shape: Shape of the images.
        error: Largest difference to the source in float64; None where outputs are no tensor.
        scale: Largest output of the source.
        rounding: Largest difference that rounding explains.
        top1_changed: Number of images whose largest output moved; None where outputs are no rows of scores.
        accuracy_before: Share of labels that the source predicts, or None.
        accuracy_after: The same of the other, or None.
    """

    shape: tuple[int, ...]
    error: float | None = None
    scale: float | None = None
    rounding: float | None = None
    top1_changed: int | None = None
    accuracy_before: float | None = None
    accuracy_after: float | None = None


def compare_networks(
    source: nn.Module, made: nn.Module, images: Tensor, labels: Int[Tensor, " images"] | None
) -> Comparison:
    """Runs both networks in evaluation mode, in their own dtype and in float64.

    Args:
        source: The network converted.
        made: The network made from it.
        images: Images for both.
        labels: Their classes, or None.

    Returns:
        The comparison.
    """
    networks = [copy.deepcopy(network).eval() for network in (source, made)]
    exact = [copy.deepcopy(network).double() for network in networks]
    shape = tuple(images.shape)
    low, new = (_outputs(network, images) for network in networks)
    high, new_high = (_outputs(network, images.double()) for network in exact)
    if low is None or new is None or high is None or new_high is None:
        return Comparison(shape)
    spread = max(largest(low.double() - high), largest(new.double() - new_high))
    scale = largest(high)
    measured = Comparison(
        shape,
        error=largest(new.double() - high),
        scale=scale,
        rounding=2 * (spread + torch.finfo(low.dtype).eps * scale),
    )
    if low.ndim != 2:
        return measured
    before, after = low.argmax(1), new.argmax(1)
    measured = measured._replace(top1_changed=int((before != after).sum()))
    if labels is None:
        return measured
    wanted = labels.to(before.device)
    shares = [(found == wanted).double().mean().item() for found in (before, after)]
    return measured._replace(accuracy_before=shares[0], accuracy_after=shares[1])


def _outputs(network: nn.Module, images: Tensor) -> Tensor | None:
    """Runs a network in batches; None where it returns something else than a tensor."""
    parts = []
    with torch.no_grad():
        for batch in images.split(_BATCH):
            part = network(batch)
            if not isinstance(part, Tensor):
                return None
            parts.append(part)
    return torch.cat(parts)
