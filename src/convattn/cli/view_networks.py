"""What `convattn view` shows: a network on images, and those beside it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convattn.cli.network_options import DEFAULTS, NetworkOptions
from convattn.errors import ArgumentError, CheckpointError, MissingDependencyError, must_be
from convattn.heads.head_report import HeadReport
from convattn.heads.head_snapshots import HEADS, read_heads
from convattn.models.pretrained import pretrained_names
from convattn.networks import create_network
from convattn.networks.images import (
    Pictures,
    class_names,
    normalisation,
    open_images,
    preparation,
    require_own_images,
    stack_images,
    trained_on,
)
from convattn.networks.source import HOMES
from convattn.viewer import Exhibit
from convattn.viewer.counterparts import CONVERTED, UNTRAINED, converted, readable_layers, untrained
from convattn.wording import some

_LIMIT, _OWN_LIMIT = 8, 20
"""Default number of a user's images, and of a network's own."""


@dataclass(frozen=True, eq=False)
class Exhibition:
    """Networks on the same images."""

    exhibits: tuple[Exhibit, ...]
    names: tuple[str, ...]  # of the images
    labels: tuple[str, ...]  # what they show; () if unknown
    prepare: tuple[Callable[[Any], Tensor] | None, ...]  # how a picture is made an image, for each network


def gather(
    source: str,
    options: NetworkOptions,
    images: Path | None,
    *,
    limit: int | None = None,
    layers: Sequence[str] = (),
    compare: Sequence[str] = (),
    kernel_size: int | None = None,
    report: Path | None = None,
) -> Exhibition:
    """Loads a network, its images, and what is shown beside it; without a limit twenty of its own, or 8 others."""
    sources = [source, *(what for what in compare if what not in (UNTRAINED, CONVERTED))]
    any_built = not all(map(_is_saved, sources))

    def load(source: str) -> _Subject:
        """Loads a network; the options of weights are for those that are built, if any of them is."""
        bare = replace(DEFAULTS, no_verify=options.no_verify)
        return _load(source, bare if any_built and _is_saved(source) else options)

    subject = load(source)
    opened = _open(subject, images, limit)
    first = _exhibit(subject, opened, "trained" if subject.folder else "network", tuple(layers) or None)
    exhibits = [first] if readable_layers(subject.network) or not compare else []
    prepare = [_preparation(subject)] * (len(exhibits) + len(compare))
    for what in compare:
        if what == UNTRAINED:
            exhibits.append(untrained(first, _draw(subject)))
        elif what == CONVERTED:
            exhibits.append(converted(first, kernel_size))
        elif ":" not in what and not Path(what).is_dir():
            raise ArgumentError(must_be("--compare", "untrained, converted, or a network such as a folder", what))
        else:
            other = load(what)
            prepare[len(exhibits)] = _preparation(other)
            exhibits.append(_other(other, subject, images, limit, len(exhibits), first))
    if report is not None:
        exhibits[0] = replace(exhibits[0], report=_read_report(report, exhibits[0]))
    return Exhibition(tuple(exhibits), opened.names, opened.labels, tuple(prepare))


@dataclass(frozen=True, eq=False)
class _Subject:
    """A network, and what is known of its origin."""

    network: nn.Module
    source: str | None  # What builds its architecture
    options: dict[str, Any]
    folder: Path | None  # Its folder
    title: str
    note: str  # What the page says of it

    @property
    def data(self) -> str | None:
        """Name of the data that it was trained on."""
        return trained_on(self.folder)


@dataclass(frozen=True, eq=False)
class _Images:
    """Prepared images."""

    prepared: Tensor
    names: tuple[str, ...]
    labels: tuple[str, ...]  # What they show; () if unknown


def _is_saved(source: str) -> bool:
    """Whether a network comes with its weights: from a folder, or from this package."""
    home, _, name = source.partition(":")
    return home not in HOMES or (home == "convattn" and name in pretrained_names())


def _load(source: str, options: NetworkOptions) -> _Subject:
    """Loads a network with its title and a note on random weights."""
    home, _, name = source.partition(":")
    loaded = options.load(source)
    title = name if home in HOMES else Path(source).resolve().name
    return _Subject(*loaded, title, "Its weights are random, drawn with seed 0." if options.random_weights else "")


def _draw(subject: _Subject) -> nn.Module:
    """Builds a network anew, with weights drawn with seed 0."""
    if subject.source is None:
        kind = type(subject.network).__name__
        raise ArgumentError(f"--compare untrained builds the network anew, and nothing says what builds a {kind}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return create_network(subject.source, subject.options)


def _open(subject: _Subject, path: Path | None, limit: int | None) -> _Images:
    """Reads and prepares images: those at a path, or the network's own."""
    like = next(subject.network.parameters())
    if path is None:
        own = require_own_images(subject.folder, subject.title, limit or _OWN_LIMIT)
        return _Images(own.prepared.to(like), own.names, own.labels)
    prepare = partial(preparation, subject.source, subject.network, subject.folder)
    opened = open_images(path, prepare, limit=limit or _LIMIT)
    prepared = stack_images(opened, path)
    names = opened.names if isinstance(opened, Pictures) else tuple(f"image {n + 1}" for n in range(len(prepared)))
    return _Images(prepared.to(like), names, ())


def _preparation(subject: _Subject) -> Callable[[Any], Tensor] | None:
    """Returns how pictures are prepared; None if it is unknown."""
    try:
        return preparation(subject.source, subject.network, subject.folder)
    except ArgumentError:
        return None
    except MissingDependencyError as missing:
        return partial(_refuse, missing)


def _refuse(missing: MissingDependencyError, _: Any) -> Tensor:
    """Says what is missing once there is a picture to prepare."""
    raise missing


def _exhibit(subject: _Subject, opened: _Images, name: str, layers: tuple[str, ...] | None) -> Exhibit:
    """Shows a network on images, with the heads that its training recorded."""
    mean, std = normalisation(subject.source, subject.network, subject.folder) or ((), ())
    # A folder that is not a run has no such file, nor has one of heads without centres.
    heads = read_heads(subject.folder) if subject.folder and (subject.folder / HEADS).is_file() else []
    return Exhibit(
        network=subject.network,
        images=opened.prepared,
        name=name,
        title=subject.title,
        note=subject.note,
        mean=mean,
        std=std,
        classes=class_names(subject.data),
        heads=heads,
        layers=layers,
    )


def _other(
    subject: _Subject, beside: _Subject, images: Path | None, limit: int | None, number: int, first: Exhibit
) -> Exhibit:
    """Shows another network: of the chosen layers if it has them, else of all."""
    if images is None and subject.data != beside.data:
        told = f"nothing says that {subject.title} and {beside.title} were trained on the same data"
        raise ArgumentError(f"--images must be given: {told}")
    missing = [name for name in first.layers or () if name not in readable_layers(subject.network)]
    if missing:
        told = f"All its layers are shown, because it has no {some(missing)}."
        subject = replace(subject, note=" ".join(filter(None, [subject.note, told])))
    layers = None if missing else first.layers
    made = _exhibit(subject, _open(subject, images, limit), f"{subject.title} {number + 1}", layers)
    return replace(made, classes=made.classes or first.classes)


def _read_report(path: Path, first: Exhibit) -> HeadReport:
    """Reads what `convattn analyze` measured of a network."""
    try:
        report = HeadReport.load(path / "report.json" if path.is_dir() else path)
    except CheckpointError as error:
        reason = re.sub(r"(a )?HeadReport", "a head report", str(error))
        raise CheckpointError(
            f"--report must be a head report (the folder that `convattn analyze -o` makes): {reason}"
        ) from None
    measured, there = [layer.name for layer in report.layers], {name for name, _ in first.network.named_modules()}
    if not there.intersection(measured):
        raise ArgumentError(f"--report is of another network: {first.title} has no layer {some(measured)}")
    return report
