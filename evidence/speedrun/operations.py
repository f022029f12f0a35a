"""What a training run of the speed run computes."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from convattn.encodings import Shift
from convattn.lab.speed_net import SpeedNet
from convattn.layers import RelativeAttention
from evidence.studies import Study, less

SIDE, TRAIN_IMAGES = 32, 50_000
_PASSES = 3
"""A step takes the operations of a forward pass three times: forward, gradients of the pixels, gradients of weights."""


def petaflops(recipe: Mapping[str, Any], *, every_pair: bool = False) -> float:
    """Counts the operations of a training run in 10¹⁵, with means along one axis after the other or over every pair."""
    model = recipe["model"]
    forward = _of_an_image(model["mixing"], tuple(model["widths"]), model["patch"], every_pair)
    return _PASSES * forward * TRAIN_IMAGES * recipe["training"]["epochs"] / 1e15


@cache
def _of_an_image(mixing: str, widths: tuple[int, ...], patch: int, every_pair: bool) -> int:
    """Counts the operations of a forward pass on an image."""
    network = SpeedNet(mixing, widths=widths, patch=patch)
    count = network.flops(SIDE)
    return count.total if every_pair else count.total - count.mixing + means_along_axes(network)


def at_equal_operations(study: Study, one: str, other: str) -> tuple[int, list[float]]:
    """Compares a network while it trains with another at its end, by seed and in points.

    Returns the last epoch up to which the first takes no more operations, and its accuracies then less those of the
    other.
    """
    share = petaflops(study.first(other)["recipe"]) / petaflops(study.first(one)["recipe"])
    epoch = int(share * study.epochs(one))
    return epoch, less([run.accuracies[epoch - 1] for run in study.of(one)], study.accuracy(other))


def means_along_axes(network: SpeedNet) -> int:
    """Counts the operations of the means of soft heads, along one axis after the other where they are separable."""
    layers = []
    for stage in network.stages:
        layers += [stage.first, stage.second]
    operations = 0
    for layer, side in zip(layers, sides_of(network), strict=True):
        if isinstance(layer, RelativeAttention) and not isinstance(layer.encoding, Shift):
            products = 2 * side**3 if layer.content is None else side**4
            operations += 2 * products * layer.num_heads * layer.in_channels
    return operations


def with_mixing(recipe: Mapping[str, Any], mixing: str) -> dict[str, Any]:
    """Returns the recipe of a speed run with other layers."""
    return {**recipe, "model": {**recipe["model"], "mixing": mixing}}


def network_of(recipe: Mapping[str, Any]) -> SpeedNet:
    """Builds the network of a recipe."""
    model = recipe["model"]
    return SpeedNet(model["mixing"], widths=model["widths"], patch=model["patch"])


def sides_of(network: SpeedNet) -> list[int]:
    """Lists the rows of the image that each mixing layer is given."""
    sides, side = [], SIDE - network.stem.kernel_size[0] + 1
    for _ in network.stages:
        sides += [side, side // 2]
        side //= 2
    return sides
