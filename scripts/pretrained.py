"""Makes the folder of a trained network that comes with the library out of the folder of a training run.

    CONVATTN_CIFAR10=FOLDER python scripts/pretrained.py runs/speedrun-0 NAME --package

The weights are rounded to float16 once and written so; `config.json` says that they are loaded as float32. What was
written is loaded again and tested on the test images of the run's data. With --package the folder lies inside the
package (`load_network("convattn:NAME")`), else in `pretrained`. A folder of an earlier run is replaced. The table in
`pretrained/README.md` is written anew; --table writes nothing else.
"""

import argparse
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pyarrow import parquet
from torch import Tensor, nn

from convattn.data import ImageDataset, ImageSplit, load_samples, normalise
from convattn.errors import ArgumentError, ConvAttnError, UnsupportedModelError
from convattn.files import new_folder, write_atomically
from convattn.heads.head_snapshots import HEAD_COLUMNS, HEADS
from convattn.lab.augment import views
from convattn.lab.head_trace import HeadTrace
from convattn.lab.model_card import model_card
from convattn.lab.run_setup import load_data_of
from convattn.lab.tables import markdown_table, write_parquet
from convattn.networks import load_network
from convattn.networks.pretrained import CARD, PretrainedCard
from convattn.provenance import RunRecord, find_revision
from convattn.sealed import LOAD_AS, WEIGHTS, read_sealed, write_sealed

ROOT = Path(__file__).parents[1]
PLACES = {True: ROOT / "src" / "convattn" / "pretrained", False: ROOT / "pretrained"}
"""Where folders stand: those that come with the package, and the others."""
STORED, LOADED = torch.float16, torch.float32
TASK = "CIFAR-10, 32 × 32 colour images of ten classes"
DATA_NOTE = (
    "The images of CIFAR-10 (A. Krizhevsky, 2009) state no licence and ask to be cited. The weights, which were learned"
    " from them, are under the licence of this library, Apache-2.0, as far as its authors can give it."
)
LICENSE = "apache-2.0"
"""The Hub's name of the licence of the weights."""

COPIES = {
    "61266f582bac335325506d87cb7486359fdf11967a74b437d536a9d0e6c8341c": "lossless but for 98 of the 60,000 images (77"
    " to train, 21 to test), whose pixels are those of a JPEG copy"
}
"""What is known of copies of a data set, by the SHA-256 of one of their files."""


def rounded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rounds floating-point tensors to what the file stores; raises if a number is too large for it."""
    narrow = {}
    for name, tensor in tensors.items():
        narrow[name] = tensor.to(STORED) if tensor.is_floating_point() else tensor
        if not torch.equal(tensor.isinf(), narrow[name].isinf()):
            raise UnsupportedModelError(f"{name}: numbers are too large for {STORED}")
    return narrow


def share_right(scores: Tensor, split: ImageSplit) -> float:
    """Returns the share of images whose own class has the highest score."""
    return (scores.argmax(1) == split.labels).double().mean().item()


def ends_of(heads: Path, network: nn.Module) -> HeadTrace:
    """Returns heads as a run records them: its first moment, and at its last step the heads of a network."""
    rows = parquet.read_table(heads, columns=[*HEAD_COLUMNS]).to_pylist()
    first, last = min(row["step"] for row in rows), max((row["step"], row["epoch"]) for row in rows)
    trace = HeadTrace(network)
    trace.rows = [tuple(row.values()) for row in rows if row["step"] == first]
    trace.record(step=last[0], epoch=last[1])
    return trace


def store(
    run: Path,
    target: Path,
    data: ImageDataset,
    command: str,
    *,
    revision: str | None = None,
    settings: str | None = None,
) -> PretrainedCard:
    """Makes the folder, which must be new or empty, and tests what it holds on the test images of the data."""
    record = RunRecord.load(run / "record.json")
    if data.record.hashes != record.data.hashes:
        raise ArgumentError(f"data must be those of the run in {run}, but their hashes differ")
    with new_folder(target, "NAME") as folder:
        config, tensors = read_sealed(run)
        config = {**config, LOAD_AS: str(LOADED).removeprefix("torch.")}
        write_sealed(folder, config, rounded(tensors))
        network = load_network(folder)
        if (run / HEADS).is_file():
            trace = ends_of(run / HEADS, network)
            write_parquet(folder / HEADS, trace.rows, HEAD_COLUMNS)
        card = PretrainedCard(
            name=target.name,
            task=TASK,
            file_dtype=str(STORED).removeprefix("torch."),
            dtype=str(LOADED).removeprefix("torch."),
            bytes=(folder / WEIGHTS).stat().st_size,
            tested=len(data.test),
            command=command,
            revision=revision,
            run=record,
            settings=settings,
            **measure(network, record, data),
        )
        card.save(folder / CARD)
        write_atomically(folder / "README.md", card_text(card))
    return card


def measure(network: nn.Module, record: RunRecord, data: ImageDataset) -> dict[str, Any]:
    """Tests what was written: accuracies on the test images, and the classes of the embedded ones."""
    images = normalise(data.test.images, data.mean, data.std)
    shown = normalise(load_samples().split.images, data.mean, data.std)
    several, with_views = record.recipe["training"]["test_views"], None
    if several != "none":
        parts = [class_scores(network, view) for view in views(images, several)]
        with_views = share_right(torch.stack(parts).mean(0), data.test)
    return {
        "accuracy": share_right(class_scores(network, images), data.test),
        "views_accuracy": with_views,
        "sample_classes": tuple(class_scores(network, shown).argmax(1).tolist()),
    }


@torch.inference_mode()
def class_scores(network: nn.Module, images: Tensor) -> Tensor:
    """Returns a network's scores of normalised images, a few hundred of them at a time."""
    return torch.cat([network(part) for part in images.split(500)])


def card_text(card: PretrainedCard) -> str:
    """Writes README.md of the folder: what the file holds, then the tables of the run's card."""
    results = card.run.results
    measured = replace(
        card.run, name=card.name, results={**results, "test_accuracy": card.accuracy}
    )
    front = model_card(measured, license_id=LICENSE)
    head, run = front[: front.index("\n# ")].rstrip(), model_card(card.run)
    tables = run[run.index("\n## ") :]
    epochs = card.run.recipe["training"]["epochs"]
    network = card.run.recipe["model"]
    copies = [COPIES[sha] for sha in card.run.data.hashes.values() if sha in COPIES]
    rows = {
        "network": f"`{network['kind']}`, {', '.join(f'{k} {v}' for k, v in network.items() if k != 'kind')}",
        "task": card.task,
        "data": "; ".join([card.run.data.name, *copies]),
        "trained": f"{epochs} {'epoch' if epochs == 1 else 'epochs'}, recipe `{card.run.name}`, seed {card.run.seed}",
        "settings": card.settings or "how they were chosen is not known",
        "test accuracy of the run": f"{results['test_accuracy']:.2%} of {card.tested:,} images",
        "test accuracy of this file": f"{card.accuracy:.2%}, measured again after rounding",
    }
    if card.views_accuracy is not None:
        rows["with views, of the run"] = f"{results['views_accuracy']:.2%}"
        rows["with views, of this file"] = f"{card.views_accuracy:.2%}"
    rows |= {
        "weights": f"rounded to {card.file_dtype} and stored so, {card.bytes:,} bytes; loaded as {card.dtype}, bit for"
        " bit the rounded values",
        "command of the run": f"`{card.run.command}`",
        "command that made this folder": f"`{card.command}`",
        "revision of that command": card.revision or "unknown",
        "licence of the data": DATA_NOTE,
    }
    packaged = card.command.endswith("--package")
    place = f"convattn:{card.name}" if packaged else f"pretrained/{card.name}"
    use = f'```python\nfrom convattn import load_network\n\nnetwork = load_network("{place}")\n```'
    note = (
        "`card.json` holds the numbers of this page, and `heads.parquet`, where there is one, the heads at the start"
        " of the run and those of this file. What follows is the card of the run."
    )
    return f"{head}\n\n# {card.name}\n\n{markdown_table(['', ''], list(rows.items()))}\n\n{use}\n\n{note}\n{tables}"


def table() -> str:
    """Returns the table of all trained networks, from their cards."""
    rows = []
    for packaged, place in PLACES.items():
        for file in sorted(place.glob(f"*/{CARD}")):
            card = PretrainedCard.load(file)
            name = f"convattn:{card.name}" if packaged else f"pretrained/{card.name}"
            folder = f"../src/convattn/pretrained/{card.name}" if packaged else card.name
            several = "" if card.views_accuracy is None else f"{card.views_accuracy:.2%}"
            cells = [card.task, f"{card.accuracy:.2%}", several, f"{card.run.parameters:,}"]
            size = f"{card.bytes / 2**20:.2f} MiB"
            rows.append([f"[`{name}`]({folder}/README.md)", *cells, size])
    names = ["network", "task", "test accuracy", "with views", "trainable parameters", "weights"]
    return markdown_table(names, rows)


def page() -> str:
    """Returns `pretrained/README.md` with the table as it must be."""
    text = (PLACES[False] / "README.md").read_text(encoding="utf-8")
    old = re.compile(r"^\|.*\n(\|.*\n)*", flags=re.MULTILINE)
    return old.sub(lambda _: f"{table()}\n", text, count=1)


def main(arguments: list[str]) -> int:
    """Runs the script; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="folder of a finished run")
    parser.add_argument("name", nargs="?", help="name of the folder to make")
    parser.add_argument("--package", action="store_true", help="put it into the package")
    parser.add_argument("--settings", help="how the settings of the run were found")
    parser.add_argument("--table", action="store_true", help="write the table only")
    options = parser.parse_args(arguments)
    if not options.table:
        if options.name is None:
            parser.error("RUN and NAME are needed")
        target = PLACES[options.package] / options.name
        command = ["python", "scripts/pretrained.py", options.run.name, options.name]
        command += ["--package"] if options.package else []
        revision = find_revision()  # before a folder is replaced, which would count as a change
        try:
            data = load_data_of(RunRecord.load(options.run / "record.json"))
            if (target / CARD).is_file():
                shutil.rmtree(target)
            facts = {"revision": revision, "settings": options.settings}
            card = store(options.run, target, data, shlex.join(command), **facts)
            print(card.summary())  # noqa: T201
        except ConvAttnError as error:
            print(f"pretrained.py: {error}", file=sys.stderr)  # noqa: T201
            return 2
    write_atomically(PLACES[False] / "README.md", page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
