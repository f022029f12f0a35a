"""Makes the network from which a run of the plan `evidence/speedrun/occupied/README.md` starts.

    CONVATTN_CIFAR10=FOLDER python -m evidence.speedrun.occupied_taps --taps 3 --seed 3 -o START

It is that of the recipe at this seed, with heads that stay. In every layer nine heads stand on so many taps of a 3 × 3
kernel. Whatever their number, one head is in the middle, four are 1 pixel away from it and four √2 pixels.
"""

from math import sqrt

import numpy as np
import torch
from jaxtyping import Float

from convattn import load_recipe, save_network
from convattn.encodings import Quadratic
from convattn.lab.run_setup import build_network
from convattn.lab.speed_net import SpeedNet
from convattn.layers import RelativeAttention2d
from evidence.results import cifar10, new_parser
from evidence.speedrun.centres import tap_numbers

QUARTER = {
    "model.mixing": "random-frozen",
    "model.widths": "16,64,64",
    "model.patch": "1",
    "training.precision": "no",
}
"""What differs from the recipe `speedrun`."""

_MIDDLE = 4
"""Number of the tap in the middle, row by row."""

_RADII = np.array([1, 1, 1, 1, sqrt(2), sqrt(2), sqrt(2), sqrt(2)])
"""Distances from the middle of the other heads, in pixels: those of the other taps."""


def occupy(taps: int, generator: np.random.Generator) -> Float[np.ndarray, "heads 2"]:
    """Draws centres of nine heads that stand on a number of taps, the middle among them; at least one on each.

    Which taps, which of the heads on which, and where on its circle inside the tap's pixel a head stands, are random.
    """
    others = generator.permutation(np.delete(np.arange(9), _MIDDLE))[: taps - 1]
    again = generator.choice(others, len(_RADII) - len(others))
    places = [(0.0, 0.0)]
    for tap, radius in zip(
        [*others.tolist(), *again.tolist()], generator.permutation(_RADII), strict=True
    ):
        places.append(_on_tap(tap, radius, generator))
    return np.array(places)


def _on_tap(tap: int, radius: float, generator: np.random.Generator) -> tuple[float, float]:
    """Draws a place at a distance from the middle until it is inside the pixel of a tap."""
    while True:
        angle = generator.uniform(0, 2 * np.pi)
        place = radius * np.array([np.sin(angle), np.cos(angle)])
        if tap_numbers(place[None])[0] == tap:
            return place[0], place[1]


def place_heads(network: SpeedNet, taps: int, seed: int) -> None:
    """Moves the heads of every layer of stages; the head that copies the inputs stays the one nearest to the query."""
    generator = np.random.default_rng(seed)
    for layer in network.stages.modules():
        if not isinstance(layer, RelativeAttention2d):
            continue
        encoding = layer.encoding
        assert isinstance(encoding, Quadratic)
        copying = int(encoding.centres.norm(dim=1).argmin())
        places = occupy(taps, generator)
        places[[0, copying]] = places[[copying, 0]]
        with torch.no_grad():
            encoding.centres.copy_(torch.from_numpy(places))


def main() -> None:
    """Builds, moves and saves."""
    parser = new_parser(__doc__)
    parser.add_argument("--taps", type=int, required=True, choices=range(2, 10))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("-o", "--output", required=True)
    arguments = parser.parse_args()
    recipe = load_recipe("speedrun", overrides=QUARTER)
    torch.manual_seed(arguments.seed)
    network = build_network(recipe, cifar10())
    assert isinstance(network, SpeedNet)
    place_heads(network, arguments.taps, arguments.seed)
    save_network(network, arguments.output)


if __name__ == "__main__":
    main()
