"""The tables of the speed run: accuracy, its controls, and where the heads went; from the folders of two studies.

    python -m evidence.speedrun

Draws the figure of the heads from the records of this folder. `STUDIES` has the
commands that make them; the folder of a run is named NETWORK-SEED.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from convattn.heads.head_snapshots import HeadSnapshot
from convattn.lab.figures import draw_heads
from convattn.lab.tables import markdown_table
from evidence.results import PAGES, new_parser
from evidence.speedrun.centres import attention_on_taps, distances_moved, taps_with_a_centre
from evidence.speedrun.operations import network_of, petaflops, sides_of
from evidence.studies import Study, TrainedRun, spread, study

_COMMAND = "convattn study speedrun --seeds 0,1,2"
_MIXINGS = ("attention", "conv", "hard", "random", "random-frozen", "content")

STUDIES = {
    "headline": _COMMAND,
    "controls": f"{_COMMAND} --set training.epochs=2 --grid model.mixing={','.join(_MIXINGS)}",
}
"""The command of each study by the name of its folder."""


def with_heads(study: Study) -> Iterator[TrainedRun]:
    """Yields the first run of each network with soft heads."""
    for label in study.runs:
        run = study.of(label)[0]
        if run.has_heads:
            yield run


def beside_first(study: Study) -> list[tuple[str, str]]:
    """Pairs each network but the first with the first."""
    first, *others = study.runs
    return [(label, first) for label in others]


def accuracies(study: Study) -> str:
    """Tabulates the networks of a study."""
    rows = []
    for label in study.runs:
        own = study.of(label)
        recipe = own[0].record["recipe"]
        mirrored = study.accuracy(label, "views_accuracy")
        rows.append(
            [
                recipe["model"]["mixing"],
                f"{len(own)}",
                spread(mirrored),
                spread(study.accuracy(label)),
                ", ".join(f"{accuracy:.2%}" for accuracy in mirrored),
                f"{recipe['training']['epochs']}",
                f"{petaflops(recipe):.3f}",
                ", ".join(f"{run.record['seconds'] / 60:.0f}" for run in own),
            ]
        )
    heads = ["layers", "n", "accuracy, image and its mirror image", "image alone", "by seed"]
    heads += ["epochs", "PFLOP", "minutes"]
    return markdown_table(heads, rows)


def heads(run: TrainedRun) -> str:
    """Tabulates where the heads went."""
    sides = sides_of(network_of(run.record["recipe"]))
    layers = zip(*run.ends(), sides, strict=True)
    header = [
        "layer",
        "pixels",
        "centres moved, px: mean, most",
        "farthest centre, px",
        "sharpness, 1/px²: start",
        "end: least, median, most",
        "attention on the 3 × 3 taps: start",
        "end",
        "taps with a centre",
    ]
    return markdown_table(header, [_layer_row(*layer) for layer in layers])


def _layer_row(start: HeadSnapshot, end: HeadSnapshot, side: int) -> Sequence[str]:
    """Words where the heads of one layer went."""
    moved = distances_moved(start, end)
    before, after = (np.trace(item.precisions, axis1=1, axis2=2) / 4 for item in (start, end))
    shares = (attention_on_taps(i.centres, i.precisions, side).mean() for i in (start, end))
    return [
        f"{end.layer + 1}",
        f"{side} × {side}",
        f"{moved.mean():.2f}, {moved.max():.2f}",
        f"{np.abs(end.centres).max():.2f}",
        f"{np.median(before):.2f}",
        f"{after.min():.2f}, {np.median(after):.2f}, {after.max():.2f}",
        *(f"{share:.0%}" for share in shares),
        f"{taps_with_a_centre(end.centres)} of 9",
    ]


def main() -> None:
    """Draws the heads of the first run before and after training."""
    new_parser(__doc__).parse_args()
    start, end = study("speedrun/headline").of("speedrun")[0].ends()
    title = "heads before and after training"
    file = PAGES / "speedrun-headline-attention.png"
    draw_heads([file], start + end, title=title, columns=len(end))


if __name__ == "__main__":
    main()
