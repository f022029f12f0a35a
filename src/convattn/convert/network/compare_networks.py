"""Two networks that should compute the same, on images: against float64, by top-1 and by accuracy."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from convattn.convert.certificate.attention import largest
from convattn.convert.certificate.convolution import independent
from convattn.convert.classes import AnyConvolution
from convattn.convert.copies import copy_module, keep_random_state
from convattn.errors import ConversionError

__all__ = ["Comparison", "compare_networks"]

_BATCH = 64
_SEED = 0


class Comparison(NamedTuple):
    """How far a network is from another.

    Attributes:
        shape: Shape of the images.
        missing: Why nothing was compared; empty where something was.
        error: Largest difference to the source in float64, or None.
        scale: Largest output of the source.
        rounding: Largest difference that rounding explains.
        same: Whether in float64, where hardly anything is rounded, the two differ by no more than rounding moves the
            source in its own dtype.
        top1_changed: Number of images whose largest output moved; None where outputs are no rows of scores.
        accuracy_before: Share of labels that the source predicts, or None.
        accuracy_after: The same of the other, or None.
    """

    shape: tuple[int, ...]
    missing: str = ""
    error: float | None = None
    scale: float | None = None
    rounding: float | None = None
    same: bool | None = None
    top1_changed: int | None = None
    accuracy_before: float | None = None
    accuracy_after: float | None = None


def compare_networks(
    source: nn.Module,
    made: nn.Module,
    images: Tensor,
    labels: Int[Tensor, " images"] | None,
    convolutions: Sequence[str],
) -> Comparison:
    """Runs both networks in evaluation mode, in their own dtype and in float64.

    Args:
        source: The network converted.
        made: The network made from it.
        images: Images for both.
        labels: Their classes, or None.
        convolutions: Names of the convolutions made.

    Returns:
        The comparison.

    Raises:
        ConversionError: The network made does not run.
    """
    shape = tuple(images.shape)
    low = _outputs(source, images)
    try:
        new = _outputs(made, images)
    except Exception as error:  # a foreign network may look at its layers in any way
        raise ConversionError(
            f"the network does not run with convolutions in it: {type(error).__name__}: {error}"
        ) from error
    if low is None or new is None:
        return Comparison(shape, "its outputs are no tensor")
    try:
        high, new_high = (_outputs(network, images, torch.float64) for network in (source, made))
    except Exception as error:  # noqa: BLE001 - a network may insist on its dtype in any way
        return Comparison(shape, f"it does not run in float64 ({type(error).__name__}: {error})")
    assert high is not None
    assert new_high is not None
    own = low.double() - high
    if low.dtype == torch.float64:  # it is its own reference, and says nothing about rounding
        other = _outputs(_summed_otherwise(made, convolutions), images)
        assert other is not None
        own = other - new_high
    scale = largest(high)
    exact = torch.finfo(low.dtype).eps * scale
    measured = Comparison(
        shape,
        error=largest(new.double() - high),
        scale=scale,
        rounding=2 * (max(largest(own), largest(new.double() - new_high)) + exact),
        same=largest(new_high - high) <= 2 * (largest(own) + exact),
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


def _summed_otherwise(made: nn.Module, convolutions: Sequence[str]) -> nn.Module:
    """Copies a network with its convolutions summed in another order, to see what rounding does in every layer."""
    copied = copy_module(made)
    for name in convolutions:
        conv = made.get_submodule(name)
        assert isinstance(conv, AnyConvolution)
        copied.get_submodule(name).forward = partial(independent, conv)
    return copied


def _outputs(network: nn.Module, images: Tensor, dtype: torch.dtype | None = None) -> Tensor | None:
    """Runs a copy of a network in batches, which are copies too; None where it returns something else than a tensor."""
    working, parts = copy_module(network).eval(), []
    if dtype is not None:
        working = working.to(dtype)
    with torch.no_grad(), keep_random_state(network):
        torch.manual_seed(_SEED)
        for batch in images.split(_BATCH):
            part = working(batch.detach().to(batch.dtype if dtype is None else dtype, copy=True))
            if not isinstance(part, Tensor):
                return None
            parts.append(part)
    return torch.cat(parts)
