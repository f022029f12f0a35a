"""The shapes that layers of a network meet, seen in a run of a copy."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from convattn.convert.copies import copy_network
from convattn.convert.network.running import Arguments, run
from convattn.errors import ArgumentError

__all__ = ["shapes_met"]


def shapes_met(model: nn.Module, images: Tensor, names: Iterable[str]) -> dict[str, list[tuple[int, ...]]]:
    """Runs a network in evaluation mode and writes down the shapes of what its layers are given.

    Args:
        model: The network; it is not changed, because a copy runs.
        images: Images that it takes.
        names: Names of the layers; of a layer with several names, any one.

    Returns:
        For each layer that the images reach, the shape of its first argument in every call, in order.

    Raises:
        ArgumentError: The network does not take the images.
        UnsupportedModelError: It cannot be copied.
    """
    met: dict[str, list[tuple[int, ...]]] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, given: tuple[Any, ...]) -> None:
            met.setdefault(name, []).append(tuple(given[0].shape))

        return hook

    watched = copy_network(model).eval()
    places = dict(watched.named_modules(remove_duplicate=False))
    for name in names:
        places[name].register_forward_pre_hook(note(name))
    try:
        run(watched, Arguments((images,), {}, "the images given"))
    except Exception as error:  # a foreign network may fail in any way
        raise ArgumentError(
            f"images must be what the network takes, but on those of shape {tuple(images.shape)} it raised"
            f" {type(error).__name__}: {error}"
        ) from error
    return met
