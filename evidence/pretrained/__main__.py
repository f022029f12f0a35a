"""The trained networks of this repository, converted both ways and tested on all test images.

Takes the networks that come with the package and those under `pretrained`, or those named; makes convolutions of their
attention with windows of several sizes, fits the narrowest, and goes back to attention. Writes
pretrained.json:

    CONVATTN_CIFAR10=FOLDER python -m evidence.pretrained
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from convattn import load_network, network_to_attention, network_to_conv
from convattn.layers import RelativeAttention
from convattn.networks.pretrained import pretrained_names
from evidence.results import (
    ROOT,
    cifar10,
    environment,
    new_parser,
    publish,
)
from evidence.trained_networks.measure import BATCH, CERTIFIED, Bench

KERNELS = (3, 5, 7)
"""Windows of the convolutions, beside the one that leaves each layer as many taps as it needs."""


def conversions(bench: Bench, name: str, network: nn.Module) -> Iterator[dict[str, Any]]:
    """Converts one network in every way, and measures each."""
    images = bench.images[:CERTIFIED]
    wide, certificate = network_to_conv(network, images=images)
    first = bench.row(name, "to convolutions, as wide as needed", network, wide, certificate)
    yield first
    again, certificate = network_to_attention(wide, images=images)
    row = bench.row(name, "these to attention again", wide, again, certificate)
    yield {**row, "padding": first["padding"]}
    for kernel in KERNELS:
        narrow, certificate = network_to_conv(network, kernel_size=kernel, images=images)
        words = f"to convolutions, {kernel} × {kernel}"
        yield bench.row(name, words, network, narrow, certificate)


def convertible(network: nn.Module) -> bool:
    """Tells whether a network attends, and by position alone."""
    layers = [module for module in network.modules() if isinstance(module, RelativeAttention)]
    return bool(layers) and all(layer.content is None for layer in layers)


def sources(named: Sequence[str]) -> list[str]:
    """Returns what to load: what was named, or every network of the repository."""
    if named:
        return list(named)
    folders = [path.parent for path in sorted((ROOT / "pretrained").glob("*/config.json"))]
    return [*(f"convattn:{name}" for name in pretrained_names()), *map(str, folders)]


def main() -> None:
    """Converts, measures and writes."""
    parser = new_parser(__doc__, "--rounds", "--busy")
    parser.add_argument(
        "sources", nargs="*", help="as for load_network; default: all of this repository"
    )
    options = parser.parse_args()
    data = cifar10()
    bench, rows = Bench(data, options.rounds), list[dict[str, Any]]()
    for source in sources(options.sources):
        network = load_network(source).eval()
        if convertible(network):
            rows += conversions(bench, Path(source).name, network)
    content = {
        **environment(__file__),
        "batch": BATCH,
        "rounds": options.rounds,
        "busy": options.busy,
        "data": {"name": data.record.name, "hashes": data.record.hashes, "tests": len(data.test)},
        "rows": rows,
    }
    publish(__file__, content)


if __name__ == "__main__":
    main()
