"""The shapes of the inputs that layers of a network receive, recorded in a run of a copy."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from convattn.convert.copies import copy_network
from convattn.convert.network.running import Arguments, run
from convattn.errors import ArgumentError

__all__ = ["shapes_met"]


def shapes_met(model: nn.Module, given: Arguments, names: Iterable[str]) -> dict[str, list[tuple[int, ...]]]:
    """Runs a network in evaluation mode and records the shapes that its layers are given.

    Args:
        model: The network; it is not changed, because a copy runs.
        given: What it is called with.
        names: Names of the layers; of a layer with several names, any one.

    Returns:
        For each layer that is reached, the shape of its first argument in every call. Layers stand in the order of
        their first call.

    Raises:
        ArgumentError: The network does not take the images.
        UnsupportedModelError: It cannot be copied.
    """
    met: dict[str, list[tuple[int, ...]]] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            met.setdefault(name, []).append(tuple(arguments[0].shape))

        return hook

    watched = copy_network(model).eval()
    places = dict(watched.named_modules(remove_duplicate=False))
    for name in names:
        places[name].register_forward_pre_hook(note(name))
    try:
        run(watched, given)
    except Exception as error:  # a foreign network may fail in any way
        shapes = given.shapes()
        raise ArgumentError(
            f"images must fit the network, but on those of shape {shapes[0] if len(shapes) == 1 else shapes}"
            f" it raised {type(error).__name__}: {error}"
        ) from error
    return met
